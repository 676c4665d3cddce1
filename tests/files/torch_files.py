"""Files as torch.save writes them, made without torch: pickles of records, in zip archives."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.files.torch_tensors import STORAGES
from agentmerge.testing import spec_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

KINDS = {dtype: name for name, dtype in STORAGES.items()}


class Global:
    """Pickled as the bare name of something that need not be there."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


@dataclass
class Storage:
    """Numbers that tensors share."""

    key: str
    array: Array
    kind: str = ""
    elements: int = -1


@dataclass
class Tensor:
    """A range of a storage, laid out by strides."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    parameter: bool = False


@dataclass
class Reduced:
    """A call."""

    function: Global
    arguments: tuple[Any, ...]


@dataclass(eq=False)
class Made:
    """An object: a class, what it is made of, and its state."""

    kind: Global | Reduced
    arguments: tuple[Any, ...] = ()
    state: Any = None


class _Pickler(pickle._Pickler):  # type: ignore[name-defined]
    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Storage):
            return None
        kind = value.kind or KINDS[spec_of("", value.array).dtype]
        elements = value.array.size if value.elements < 0 else value.elements
        return ("storage", Global("torch", kind), value.key, "cpu", elements)

    def save(self, value: Any, save_persistent_id: bool = True) -> Any:
        if isinstance(value, Global):
            return self.write(b"c" + f"{value.module}\n{value.name}\n".encode())
        if isinstance(value, Reduced):
            self.save(value.function)
            self.save(value.arguments)
            return self.write(b"R")
        if isinstance(value, Made):
            return self._made(value)
        if isinstance(value, Tensor):
            return self.save(_record(value))
        return super().save(value, save_persistent_id)

    def _made(self, value: Made) -> None:
        if id(value) in self.memo:
            return self.write(self.get(self.memo[id(value)][0]))
        self.save(value.kind)
        self.save(value.arguments)
        self.write(b"\x81")
        self.memoize(value)
        if value.state is not None:
            self.save(value.state)
            self.write(b"b")
        return None


def _record(tensor: Tensor) -> Reduced:
    arguments = (tensor.storage, tensor.offset, tensor.shape, tensor.strides, False, OrderedDict())
    made = Reduced(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    if tensor.parameter:
        return Reduced(Global("torch._utils", "_rebuild_parameter"), (made, True, OrderedDict()))
    return made


def pickled(value: Any, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    _Pickler(out, protocol).dump(value)
    return out.getvalue()


def archive(raw: bytes, storages: Mapping[str, bytes], *, order: bytes = b"little", compress: bool = False) -> bytes:
    """The bytes of a file of torch.save."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", raw)
        file.writestr("archive/byteorder", order)
        for key, content in storages.items():
            file.writestr(f"archive/data/{key}", content)
        file.writestr("archive/version", b"3\n")
    return out.getvalue()


def put_torch(path: Path, tensors: Mapping[str, Array | Tensor]) -> Path:
    """A state dict as torch.save writes one; an array gets a storage of its own."""
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if isinstance(value, Tensor):
            state[name] = value
            continue
        strides = tuple(step // value.itemsize for step in value.strides)
        state[name] = Tensor(Storage(str(len(state)), value), 0, value.shape, strides)
    storages = {tensor.storage.key: tensor.storage.array.tobytes() for tensor in state.values()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive(pickled(OrderedDict(state)), storages))
    return path
