"""Small pickles of what trainers leave in parts, as torch writes them, without torch: seeds for fuzz_sources.py."""

from __future__ import annotations

import pickle
import zipfile
from io import BytesIO
from typing import Any, ClassVar


def named(path: str, **more: Any) -> type:
    """A class that is pickled by this name, which need not be there."""
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module, "__qualname__": name, **more})


class Storage:
    """Numbers outside of the pickle."""

    def __init__(self, kind: str, key: str, elements: int) -> None:
        self.record = ("storage", named(f"torch.{kind}"), key, "cpu", elements)


class Called:
    """What a call of a name gives."""

    def __init__(self, path: str, *arguments: Any) -> None:
        self._call = named(path), arguments

    def __reduce__(self) -> Any:
        return self._call


class _Pickler(pickle._Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.record if isinstance(value, Storage) else None

    def save_global(self, value: Any, name: str | None = None) -> None:
        self.write(f"c{value.__module__}\n{value.__qualname__}\n".encode())

    dispatch: ClassVar = {**pickle._Pickler.dispatch, type: save_global}


def pickled(value: Any, protocol: int = 2) -> bytes:
    out = BytesIO()
    _Pickler(out, protocol).dump(value)
    return out.getvalue()


def made(path: str, *arguments: Any, **state: Any) -> Any:
    """An object that is made of arguments and has attributes."""
    kind = named(path, __new__=lambda cls, *_: object.__new__(cls), __getnewargs__=lambda _: arguments)
    value = kind()
    value.__dict__.update(state)
    return value


def tensor(kind: str, key: str, shape: tuple[int, ...]) -> Called:
    strides = tuple(int(shape[1]) if i == 0 and len(shape) > 1 else 1 for i in range(len(shape)))
    elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return Called("torch._utils._rebuild_tensor_v2", Storage(kind, key, elements), 0, shape, strides, False, {})


def rank_file(*, old: bool) -> bytes:
    """The pickle of rank 0 of two: rows 0 and 1 of a [4, 3], as a DTensor, and a plain tensor."""
    size = Called("torch.Size", (4, 3))
    ranks = tensor("IntStorage", "1", (2,))
    flat = made("torch.distributed._mesh_layout._FlatLayout", shape=(2,), stride=(1,))
    layout = made("torch.distributed._mesh_layout._MeshLayout", axes=(flat,))
    says = {"mesh": ranks, "_coordinate_on_dim": [0]} if old else {"_layout": layout, "_rank_map": ranks}
    mesh = made("torch.distributed.device_mesh.DeviceMesh", **says)
    shard = made("torch.distributed.tensor.placement_types.Shard", dim=0)
    meta = made("torch.distributed.tensor._dtensor_spec.TensorMeta", size, (3, 1))
    about = {"mesh": mesh, "placements": (shard,), "tensor_meta": meta}
    spec = made("torch.distributed.tensor._dtensor_spec.DTensorSpec", **about)
    kind = named("torch.distributed.tensor.DTensor")
    state = (None, {"_local_tensor": tensor("FloatStorage", "0", (2, 3)), "_spec": spec})
    rebuild = named("torch._utils._rebuild_wrapper_subclass")
    part = Called("torch._tensor._rebuild_from_type_v2", rebuild, kind, (kind, size), state)
    return pickled({"a": part, "b": tensor("FloatStorage", "2", (2,))})


def rank_archive(raw: bytes) -> bytes:
    return archive(raw, {"0": bytes(24), "1": b"\0\0\0\0\1\0\0\0", "2": bytes(8)})


def metadata(length: int) -> bytes:
    """.metadata of one [4, 3] in two chunks, which lie one behind the other in one file."""
    at = "torch.distributed.checkpoint.metadata"
    order = Called(f"{at}._MEM_FORMAT_ENCODING", 0)
    state = (named("torch.float32"), None, False, order, False)
    properties = named(f"{at}.TensorProperties", __getstate__=lambda _: state)()
    chunks, places = [], {}
    for i in range(2):
        offsets, sizes = Called("torch.Size", (2 * i, 0)), Called("torch.Size", (2, 3))
        chunks.append(made(f"{at}.ChunkStorageMetadata", offsets=offsets, sizes=sizes))
        where = {"relative_path": "__0_0.distcp", "offset": i * length, "length": length}
        index = made(f"{at}.MetadataIndex", fqn="model.a", offset=offsets, index=i)
        places[index] = made("torch.distributed.checkpoint.filesystem._StorageInfo", **where)
    whole = made(f"{at}.TensorStorageMetadata", properties=properties, size=Called("torch.Size", (4, 3)), chunks=chunks)
    fields = {
        "state_dict_metadata": {"model.a": whole, "step": made(f"{at}.BytesStorageMetadata")},
        "planner_data": {"model.a": ("model", "a")},
        "storage_data": places,
    }
    return pickled(made(f"{at}.Metadata", **fields), 4)


def chunk() -> bytes:
    """A part of a .distcp file: an archive of one [2, 3]."""
    return archive(pickled(tensor("FloatStorage", "0", (2, 3))), {"0": bytes(24)})


def archive(raw: bytes, storages: dict[str, bytes]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("m/data.pkl", raw)
        file.writestr("m/byteorder", b"little")
        for key, content in storages.items():
            file.writestr(f"m/data/{key}", content)
    return out.getvalue()
