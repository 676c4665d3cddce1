"""Parts of tensors as trainers leave them, made without torch: files of FSDP's ranks, .distcp with .metadata."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.testing import spec_of
from tests.files.torch_files import Global, Made, Reduced, Storage, Tensor, archive, pickled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agentmerge.tensors import Array

TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
}  # fmt: skip
PLACES, SPEC = "torch.distributed.tensor.placement_types", "torch.distributed.tensor._dtensor_spec"
MADE = "torch.distributed.checkpoint.metadata"
COPIES = Made(Global(PLACES, "Replicate"), (), {})


def rows(dim: int) -> Made:
    """Sharded along a dimension."""
    return Made(Global(PLACES, "Shard"), (), {"dim": dim})


class Archive:
    """What goes into one file of torch.save."""

    def __init__(self) -> None:
        self.storages: dict[str, bytes] = {}

    def tensor(self, array: Array) -> Tensor:
        """A storage of its own."""
        key = str(len(self.storages))
        self.storages[key] = np.ascontiguousarray(array).tobytes()
        strides = tuple(int(np.prod(array.shape[i + 1 :])) for i in range(array.ndim))
        return Tensor(Storage(key, array.reshape(-1)), 0, array.shape, strides)

    def bytes(self, value: Any) -> bytes:
        return archive(pickled(value), self.storages)

    def mesh(self, ranks: Array, *, old: bool = False) -> Made:
        """As torch pickled it before 2.10, or does since."""
        table = np.ascontiguousarray(ranks.astype(np.int32))
        if old:
            state = {"device_type": "cuda", "mesh": self.tensor(table), "mesh_dim_names": None, "_hash": -(2**62)}
            return Made(Global("torch.distributed.device_mesh", "DeviceMesh"), (), state)
        steps = [int(np.prod(ranks.shape[i + 1 :])) for i in range(ranks.ndim)]
        return self.layout(table.reshape(-1), [((n,), (step,)) if n > 1 else ((), ()) for n, step in zip(
            ranks.shape, steps, strict=True)])  # fmt: skip

    def layout(self, table: Array, axes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Made:
        """A mesh of some steps through a table of ranks."""
        flat = Global("torch.distributed._mesh_layout", "_FlatLayout")
        made = tuple(Made(flat, (), {"shape": shape, "stride": stride}) for shape, stride in axes)
        layout = Made(Global("torch.distributed._mesh_layout", "_MeshLayout"), (), {"axes": made})
        state = {"_layout": layout, "_rank_map": self.tensor(table), "_root_mesh": None}
        return Made(Global("torch.distributed.device_mesh", "DeviceMesh"), (), state)

    def dtensor(self, local: Array, shape: Sequence[int], placements: tuple[Made, ...], mesh: Made, **spec: Any) -> Any:
        meta = Made(Global(SPEC, "TensorMeta"), (size(shape), (), Global("torch", "float32")))
        says = {"mesh": mesh, "placements": placements, "tensor_meta": meta, **spec}
        state = {"_local_tensor": self.tensor(local), "_spec": Made(Global(SPEC, "DTensorSpec"), (), says)}
        return subclass(Global("torch.distributed.tensor", "DTensor"), (None, state))


def subclass(kind: Global, state: Any) -> Reduced:
    rebuild = Global("torch._utils", "_rebuild_wrapper_subclass")
    device = Reduced(Global("torch", "device"), ("cpu",))
    layout = Reduced(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    arguments = (kind, Global("torch", "float32"), (), (), 0, layout, device, False)
    return Reduced(Global("torch._tensor", "_rebuild_from_type_v2"), (rebuild, kind, arguments, state))


def size(shape: Sequence[int]) -> Reduced:
    return Reduced(Global("torch", "Size"), (tuple(shape),))


def chunk(n: int, count: int, place: int) -> slice:
    """torch.chunk's."""
    step = -(-n // count)
    return slice(min(place * step, n), min((place + 1) * step, n))


def local(array: Array, placements: Sequence[Made], mesh: Array, rank: int) -> Array:
    """What a rank holds: its own small reading of what DTensor does."""
    (at,) = np.argwhere(mesh == rank)
    for placement, place, count in zip(placements, at, mesh.shape, strict=True):
        if placement is not COPIES:
            dim = placement.state["dim"]
            array = np.take(array, range(array.shape[dim])[chunk(array.shape[dim], count, int(place))], axis=dim)
    return array


def put_ranks(
    folder: Path,
    tensors: Mapping[str, Array],
    placements: Sequence[Made] = (rows(0),),
    mesh: Array | None = None,
    *,
    old: bool = False,
    plain: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Path:
    """The files of every rank of a mesh; `plain` tensors are copies without a word of where they belong."""
    ranks = np.arange(2) if mesh is None else mesh
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks.size):
        put, state = Archive(), {}
        known = put.mesh(ranks, old=old)
        for name, array in tensors.items():
            if name in plain:
                state[name] = put.tensor(array)
            else:
                held = local(array, placements, ranks, rank)
                state[name] = put.dtensor(held, array.shape, tuple(placements), known)
        path = folder / f"model_world_size_{ranks.size}_rank_{rank}.pt"
        path.write_bytes(put.bytes({**state, **(more or {})}))
    return folder


def put_sharded(folder: Path, tensors: Mapping[str, Array], world: int = 2) -> Path:
    """ShardedTensors, as FSDP without a mesh saves them."""
    folder.mkdir(parents=True, exist_ok=True)
    api = "torch.distributed._shard.sharded_tensor.api"
    nested = Reduced(Global("__builtin__", "getattr"), (Global(api, "ShardedTensor"), "ProcessGroupState"))
    for rank in range(world):
        put, state = Archive(), {}
        for name, array in tensors.items():
            part = chunk(len(array), world, rank)
            about = {"shard_offsets": [part.start, *[0] * (array.ndim - 1)], "shard_sizes": list(array[part].shape)}
            metadata = Made(Global("torch.distributed._shard.metadata", "ShardMetadata"), (), (None, about))
            fields = (None, {"tensor": put.tensor(array[part]), "metadata": metadata})
            shard = Made(Global("torch.distributed._shard.sharded_tensor.shard", "Shard"), (), fields)
            whole = Made(Global("torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata"), (),
                         {"size": size(array.shape), "shards_metadata": [metadata]})  # fmt: skip
            shards = [shard] if part.start < part.stop else []
            group = Made(nested, (), {"global_rank": rank})
            state[name] = subclass(Global(api, "ShardedTensor"), (shards, whole, group, None, False))
        (folder / f"model_world_size_{world}_rank_{rank}.pt").write_bytes(put.bytes(state))
    return folder


def boxes(shape: tuple[int, ...], cuts: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of a tensor divided along every dimension into so many chunks."""
    sides = [[chunk(n, count, i) for i in range(count)] for n, count in zip(shape, cuts, strict=True)]
    parts = [(tuple(s.start for s in at), tuple(s.stop - s.start for s in at)) for at in product(*sides)]
    return [part for part in parts if all(part[1])]


def put_distcp(
    folder: Path,
    tensors: Mapping[str, Array],
    *,
    paths: Mapping[str, tuple[str | int, ...]] | None = None,
    files: int = 2,
    cuts: int = 2,
    metadata: Mapping[str, Any] | None = None,
    edit: Any = None,
    by_name: bool = False,
) -> Path:
    """A distributed checkpoint, every tensor cut along each of its dimensions.

    Args:
        folder: to put it into.
        tensors: by key.
        paths: of the keys in the nested state dict.
        files: how many .distcp files.
        cuts: chunks along each dimension.
        metadata: replaces fields of .metadata.
        edit: called with chunk records and places, to spoil them.
        by_name: members of enums as Python 3.11.0 to 3.11.3 saves them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = [bytearray() for _ in range(files)]
    tensor_metadata, places, count = {}, {}, 0
    for key, array in tensors.items():
        chunks = []
        for offsets, sizes in boxes(array.shape, [cuts] * array.ndim):
            put, file = Archive(), count % files
            part = array[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
            raw = put.bytes(put.tensor(part))
            index = Made(Global(MADE, "MetadataIndex"), (), {"fqn": key, "offset": size(offsets), "index": len(chunks)})
            info = {"relative_path": f"__{file}_0.distcp", "offset": len(contents[file]), "length": len(raw)}
            places[index] = Made(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), (), info)
            chunks.append(
                Made(Global(MADE, "ChunkStorageMetadata"), (), {"offsets": size(offsets), "sizes": size(sizes)})
            )
            contents[file] += raw
            count += 1
        dtype = Global("torch", TORCH[spec_of("", array).dtype])
        order = Reduced(enum := Global(MADE, "_MEM_FORMAT_ENCODING"), (0,))
        if by_name:
            order = Reduced(Global("__builtin__", "getattr"), (enum, "TORCH_CONTIGUOUS_FORMAT"))
        layout = Reduced(Global("torch.serialization", "_get_layout"), ("torch.strided",))
        properties = Made(Global(MADE, "TensorProperties"), (), (dtype, layout, False, order, False))
        says = {"properties": properties, "size": size(array.shape), "chunks": chunks}
        tensor_metadata[key] = Made(Global(MADE, "TensorStorageMetadata"), (), says)
    tensor_metadata["step"] = Made(Global(MADE, "BytesStorageMetadata"))
    if edit is not None:
        edit(tensor_metadata, places)
    for i, content in enumerate(contents):
        (folder / f"__{i}_0.distcp").write_bytes(bytes(content))
    meta = Made(Global(MADE, "StorageMeta"), (), {"checkpoint_id": Reduced(Global("pathlib", "PosixPath"), ("/", "a"))})
    fields = {
        "state_dict_metadata": tensor_metadata,
        "planner_data": dict(paths or {}),
        "storage_data": places,
        "storage_meta": meta,
        "version": "1.0.0",
        **(metadata or {}),
    }
    (folder / ".metadata").write_bytes(pickled(Made(Global(MADE, "Metadata"), (), fields), 4))
    return folder
