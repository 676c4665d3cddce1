"""What a process says of its part of a tensor, DTensor or ShardedTensor: records of a pickle that run nothing.

A DTensor is one local tensor per process and a placement for every dimension of the mesh of processes. Those that are
sharded divide a dimension of size n among k processes, the first mesh dimension first, as torch.chunk does:

    process i of k has [min(i * ceil(n / k), n), min((i + 1) * ceil(n / k), n))

A ShardedTensor names offsets and sizes of every shard itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.files.header import TOO_MANY
from agentmerge.files.os_errors import AGAIN
from agentmerge.files.pickles import Call, Record, fields_of
from agentmerge.files.torch_tensors import CALLS as TENSORS
from agentmerge.files.torch_tensors import MOST_DIMENSIONS, SUBCLASS, unwrapped
from agentmerge.sources.parted import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Axis = list[tuple[int, int]]

SIZE = "torch.Size"
_D, _S = "torch.distributed", "torch.distributed._shard"
CALLS = TENSORS | {
    SIZE, "torch.device", "torch.serialization._get_layout",
    f"{_S}.sharded_tensor.metadata.MEM_FORMAT_ENCODING", "_codecs.encode",
}  # fmt: skip
"""All that the pickle of a process may ask to be called; nothing is."""


def _names(modules: Iterable[str], classes: Iterable[str]) -> set[str]:
    return {f"{_D}.{module}.{name}" for module in modules for name in classes}


PLACEMENTS = ("tensor.placement_types", "_tensor.placement_types")
RECORDS = frozenset(
    _names(PLACEMENTS, ("Shard", "_StridedShard", "Replicate", "Partial", "_Partial", "DTensorSpec", "TensorMeta"))
    | _names(("tensor._dtensor_spec", "_tensor._dtensor_spec"), ("DTensorSpec", "TensorMeta", "ShardOrderEntry"))
    | _names(("device_mesh", "_tensor.device_mesh"), ("DeviceMesh",))
    | _names(("_mesh_layout",), ("_MeshLayout", "_FlatLayout"))
    | _names(("remote_device",), ("_remote_device",))
    | _names(("_shard.metadata",), ("ShardMetadata",))
    | _names(("_shard.sharded_tensor.shard",), ("Shard",))
    | _names(("_shard.sharded_tensor.metadata",), ("ShardedTensorMetadata", "TensorProperties"))
    | _names(("_shard.sharded_tensor.api",), ("ShardedTensor.ProcessGroupState",))
    | _names(("_shard.sharding_spec.chunk_sharding_spec",), ("ChunkShardingSpec",))
    | _names(("_shard.sharding_spec.api",), ("EnumerableShardingSpec",))
    | {"_io.BytesIO"}  # what modules save beside their tensors
)
"""The classes that it may have objects of: what describes the parts of a tensor; none is made."""
UNPLACED = (
    "Save the checkpoint with FSDP alone (parts along dimensions of the tensor), or put it together with the trainer's "
    "own converter, and give the safetensors that it writes."
)
MOST_PROCESSES = 1 << 16


@dataclass(frozen=True, slots=True)
class Local:
    """What one process holds of a tensor."""

    shape: tuple[int, ...] | None
    """Of the whole tensor; None where a plain tensor does not say it."""
    parts: tuple[tuple[Box | None, Call], ...]
    """Each box, and the record of the tensor that is stored for it; None for a plain one."""


class Process:
    """Reads the records of one process."""

    def __init__(self, rank: int, numbers: Callable[[Call], list[int]]) -> None:
        """See the class.

        Args:
            rank: which one.
            numbers: reads the elements of a small tensor of integers: the ranks of a mesh.
        """
        self._rank, self._numbers = rank, numbers
        self._meshes: dict[int, tuple[Record, tuple[tuple[int, int], ...]]] = {}

    def local(self, value: Call, where: Where) -> Local:
        """What it holds of a tensor.

        Raises:
            SourceError: that is nothing which can be read.
        """
        value = unwrapped(value, where)
        if value.name != SUBCLASS:
            return Local(None, ((None, value),))
        if len(value.arguments) != 4:
            raise wrong(where, f"has a record of {len(value.arguments)} parts", "4")
        kind, state = getattr(value.arguments[1], "text", ""), value.arguments[3]
        if kind.endswith(".DTensor"):
            return self._dtensor(fields_of(state), where)
        if kind.endswith(".ShardedTensor") and isinstance(state, tuple) and len(state) > 1:
            return _sharded(state[0], state[1], where)
        raise wrong(where, f"is an object of {abbreviated(kind)}", "a tensor in parts", UNPLACED)

    def _dtensor(self, fields: Mapping[Any, Any], where: Where) -> Local:
        held, spec = fields.get("_local_tensor"), fields.get("_spec")
        if not isinstance(held, Call) or not isinstance(spec, Record):
            raise wrong(where, "has no local tensor or no spec", "both")
        meta = spec.fields.get("tensor_meta")
        shape = size_of(meta.arguments[0], where) if isinstance(meta, Record) and meta.arguments else None
        mesh, placements = spec.fields.get("mesh"), spec.fields.get("placements")
        if shape is None or not isinstance(mesh, Record) or not isinstance(placements, tuple):
            raise wrong(where, "does not say its shape, mesh and placements", "all of them")
        _check_order(spec.fields.get("shard_order"), where)
        sides = self._place(mesh, where)
        if len(placements) != len(sides):
            raise wrong(where, f"has {len(placements)} placements on a mesh of {len(sides)} dimensions", "one for each")
        offsets, sizes = [0] * len(shape), list(shape)
        for placement, (place, count) in zip(placements, sides, strict=True):
            dim = _sharded_dim(placement, len(shape), where)
            if dim is not None:
                step = -(-sizes[dim] // count)
                first, last = min(place * step, sizes[dim]), min((place + 1) * step, sizes[dim])
                offsets[dim], sizes[dim] = offsets[dim] + first, last - first
        return Local(shape, ((Box(tuple(offsets), tuple(sizes)), held),))

    def _place(self, mesh: Record, where: Where) -> tuple[tuple[int, int], ...]:
        """Where this process stands on a mesh: by dimension its place and how many there are."""
        known = self._meshes.get(id(mesh))
        if known is None:
            axes, ranks = self._axes(mesh, where)
            if ranks.count(self._rank) != 1:
                raise wrong(
                    where, f"lies on a mesh of the ranks {abbreviated(ranks)}", f"{self._rank} among them, once"
                )
            at = ranks.index(self._rank)
            known = self._meshes[id(mesh)] = (mesh, tuple(_side(axis, at) for axis in axes))
        return known[1]

    def _axes(self, mesh: Record, where: Where) -> tuple[list[Axis], list[int]]:
        """The dimensions of a mesh, perhaps some of a larger one's, and the table of ranks that they step through."""
        fields = mesh.fields
        if isinstance(whole := fields.get("mesh"), Call):  # before torch 2.10
            shape = size_of(whole.arguments[2] if len(whole.arguments) > 2 else None, where)
            axes: list[Axis] = [[(n, prod(shape[i + 1 :]))] for i, n in enumerate(shape)]
            return axes, self._numbers(whole)
        layout, table = fields.get("_layout"), fields.get("_rank_map")
        if not isinstance(layout, Record) or not isinstance(table, Call):
            raise wrong(where, "lies on a mesh that names no ranks", "its ranks")
        axes, ranks = [_steps(shape, stride, where) for shape, stride in _layouts(layout, where)], self._numbers(table)
        size = 1
        for n, stride in sorted((step for axis in axes for step in axis), key=lambda step: step[::-1]):
            if n < 1 or stride % size:
                raise wrong(where, f"lies on a mesh of the steps {abbreviated(axes)}", "those of rows and columns")
            size = stride * n
        if size < 1 or len(ranks) % size:
            raise wrong(where, f"lies on a mesh of the steps {abbreviated(axes)} in {len(ranks)} ranks", "all of them")
        return axes, ranks


def size_of(found: Any, where: Where) -> tuple[int, ...]:
    """A shape: torch.Size, a tuple or a list of whole numbers.

    Raises:
        SourceError: it is none, or too large a one.
    """
    if isinstance(found, Call) and found.name == SIZE and len(found.arguments) == 1:
        found = found.arguments[0]
    if isinstance(found, Call) and found.name == SIZE and not found.arguments:
        found = ()
    if not _naturals(found) or prod(n or 1 for n in found) >= TOO_MANY:
        raise wrong(where, f"has shape {abbreviated(found)}", "whole numbers from 0 on, under 2^63 elements")
    return tuple(found)


def _naturals(found: Any) -> bool:
    """Whether this is a list or tuple of whole numbers from 0 on, no longer than a tensor has dimensions."""
    few = isinstance(found, tuple | list) and len(found) <= MOST_DIMENSIONS
    return few and all(type(n) is int and n >= 0 for n in found)


def wrong(where: Where, found: str, expected: str, todo: str = AGAIN) -> SourceError:
    """The error for a tensor of a file."""
    text = f"{where.path}: tensor {abbreviated(where.tensor)} {found}"
    return SourceError(text, expected=expected, todo=todo, where=where)


def _sharded_dim(placement: Any, dims: int, where: Where) -> int | None:
    """The dimension that a placement divides; None for copies."""
    name = placement.name.rpartition(".")[2] if isinstance(placement, Record) else abbreviated(placement)
    if name == "Replicate":
        return None
    if name != "Shard":
        raise wrong(where, f"is placed as {name}", "Shard or Replicate", UNPLACED)
    dim = placement.fields.get("dim", placement.arguments[0] if placement.arguments else None)
    if type(dim) is not int or not -dims <= dim < dims:
        raise wrong(where, f"is divided along dimension {abbreviated(dim)}", f"one of its {dims}")
    return dim % dims


def _check_order(order: Any, where: Where) -> None:
    """Raise SourceError where a dimension is divided in another order than that of the mesh."""
    for entry in order if isinstance(order, tuple) else ():
        dims: Any = entry.arguments[1] if isinstance(entry, Record) and len(entry.arguments) > 1 else None
        if not _naturals(dims) or list(dims) != sorted(dims):
            raise wrong(where, f"is divided in the order {abbreviated(dims)}", "that of the mesh", UNPLACED)


def _side(axis: Axis, at: int) -> tuple[int, int]:
    """The place along one dimension of a mesh, and how many there are, of what stands at `at` in the table of ranks."""
    place, count = 0, 1
    for n, stride in axis:
        place, count = place * n + at // stride % n, count * n
    return place, count


def _layouts(layout: Record, where: Where) -> list[tuple[Any, Any]]:
    """Shape and stride of every dimension of a mesh."""
    fields = layout.fields
    if isinstance(axes := fields.get("axes"), tuple) and all(isinstance(axis, Record) for axis in axes):
        return [(axis.fields.get("shape"), axis.fields.get("stride")) for axis in axes]
    shape, stride = fields.get("shape"), fields.get("stride")
    if isinstance(shape, int):
        return [(shape, stride)]
    if isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride):
        return list(zip(shape, stride, strict=True))
    raise wrong(where, "lies on a mesh without a shape", "its shape")


def _steps(shape: Any, stride: Any, where: Where) -> Axis:
    """One dimension of a mesh, which may be several made one: how many steps, and how long each is."""
    shapes, strides = ((n,) if type(n) is int else n for n in (shape, stride))
    if not _naturals(shapes) or not _naturals(strides) or len(shapes) != len(strides):
        raise wrong(where, f"lies on a mesh of shape {abbreviated(shape)}, stride {abbreviated(stride)}", "numbers")
    return [(n, step) for n, step in zip(shapes, strides, strict=True) if n != 1]


def _sharded(shards: Any, metadata: Any, where: Where) -> Local:
    """What the state of a ShardedTensor says."""
    if not isinstance(shards, list) or not isinstance(metadata, Record):
        raise wrong(where, "has no shards or no metadata", "both")
    shape, parts = size_of(metadata.fields.get("size"), where), []
    for shard in shards:
        fields = shard.fields if isinstance(shard, Record) else {}
        held, about = fields.get("tensor"), fields.get("metadata")
        if not isinstance(held, Call) or not isinstance(about, Record):
            raise wrong(where, "has a shard without a tensor", "one")
        offsets, sizes = (size_of(about.fields.get(f"shard_{name}"), where) for name in ("offsets", "sizes"))
        parts.append((Box(offsets, sizes), held))
    return Local(shape, tuple(parts))
