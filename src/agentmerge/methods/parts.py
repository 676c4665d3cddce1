"""Gate and up of experts that are stored as one matrix, taken apart and put together again.

They are two linear layers with the same inputs, and a method of whole matrices makes of each what it makes of the same
matrices in tensors of their own.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.tensors import Block, Experts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.tensors import Array, Stack, TensorSpec

PARTS = ("gate", "up")


def is_joined(tensor: TensorSpec, *, turned: bool) -> bool:
    """Whether each of its matrices is two; see `sides_of`."""
    outputs = tensor.shape[-1 if turned else -2]
    return tensor.experts is not None and bool(tensor.experts.joined) and outputs % len(PARTS) == 0


def sides_of(tensor: TensorSpec, *, turned: bool) -> tuple[int, int]:
    """[out, in] of each linear layer that a tensor holds.

    Args:
        tensor: a matrix, or a stack of them.
        turned: whether they are stored [in, out].
    """
    rows, columns = tensor.shape[-2:]
    rows, columns = (columns, rows) if turned else (rows, columns)
    return (rows // len(PARTS), columns) if is_joined(tensor, turned=turned) else (rows, columns)


def part_by_part(stack: Stack, turned: bool, merged: Callable[[Stack], Array]) -> Array:
    """What `merged` makes of the gates and of the ups of a stack of whole matrices, where each was, float32 [n].

    Args:
        stack: of a tensor of joined matrices.
        turned: whether they are stored [in, out].
        merged: float32 of a stack of matrices that are not joined.
    """
    tensor = stack.block.tensor
    return _together([merged(_part(stack, i, turned=turned)) for i in range(len(PARTS))], tensor, turned=turned)


def _part(stack: Stack, i: int, *, turned: bool) -> Stack:
    """Gate (0) or up (1) of a stack, as the stack of a tensor that holds nothing else."""
    tensor = stack.block.tensor
    assert tensor.experts is not None
    first, *sides = tensor.shape
    sides[1 if turned else 0] //= len(PARTS)
    experts = Experts(tensor.experts.turned, part=PARTS[i])
    own = replace(tensor, shape=(first, *sides), experts=experts)

    def cut(array: Array) -> Array:
        rows = array if array.ndim > 1 else array[None]
        found = [np.take(_apart(row, tensor, turned=turned), i, _axis(tensor, turned=turned)) for row in rows]
        return np.stack([one.reshape(-1) for one in found]) if array.ndim > 1 else found[0].reshape(-1)

    start, stop = stack.block.start // len(PARTS), stack.block.stop // len(PARTS)
    return replace(
        stack,
        block=Block(own, start, stop),
        base=cut(stack.base),
        agents=tuple(map(cut, stack.agents)),
        extra={name: tuple(map(cut, arrays)) for name, arrays in stack.extra.items()},
        stored=tuple(map(cut, stack.stored)),
        tau=None if stack.tau is None else cut(stack.tau),
    )


def _together(parts: Sequence[Array], tensor: TensorSpec, *, turned: bool) -> Array:
    """The parts of matrices where they lie in the joined ones, flat."""
    found = np.empty(sum(part.size for part in parts), parts[0].dtype)
    places = np.moveaxis(_apart(found, tensor, turned=turned), _axis(tensor, turned=turned), 0)
    for place, part in zip(places, parts, strict=True):
        place[...] = part.reshape(place.shape)
    return found


def _apart(flat: Array, tensor: TensorSpec, *, turned: bool) -> Array:
    """A view of joined matrices whose axis `_axis` tells gate from up."""
    rows, columns = tensor.shape[-2:]
    side = (columns if turned else rows) // len(PARTS)
    assert tensor.experts is not None
    split = (len(PARTS), side) if tensor.experts.joined == "halves" else (side, len(PARTS))
    count = flat.size // prod((rows, columns))
    return flat.reshape((count, rows, *split) if turned else (count, *split, columns))


def _axis(tensor: TensorSpec, *, turned: bool) -> int:
    """Which axis of `_apart` it is."""
    assert tensor.experts is not None
    return (2 if turned else 1) + (tensor.experts.joined == "pairs")
