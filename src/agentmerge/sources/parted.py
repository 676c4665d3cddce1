"""Tensors in parts: each a box of the tensor, stored somewhere as a tensor of its own.

    part[i, j, ...] = tensor[offsets[0] + i, offsets[1] + j, ...]

Row by row, a box has its elements in the order in which the tensor has them. So what a block needs of a part is one
range of that part, whichever dimensions were divided: a block reads those ranges and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.files.os_errors import AGAIN
from agentmerge.sources.placed import room_for
from agentmerge.sources.source import NOWHERE, Extents, Stored
from agentmerge.tensors import Array, Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentmerge.sources.source import Weights
    from agentmerge.tensors import TensorSpec

STEP = 1 << 16
"""Elements that are put in their places at a time, where they are not neighbours."""
TOGETHER = 16
"""Parts of a block that one call reads, each perhaps of a file of its own: a process may open few at once."""
MOST_PARTS = 1 << 12
"""Of a tensor that is divided along several dimensions: each is compared with each."""


@dataclass(frozen=True, slots=True)
class Box:
    """A range of every dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many lie in it."""
        return prod(self.sizes)

    def before(self, element: int, shape: tuple[int, ...]) -> int:
        """How many of its elements lie before an element of the tensor, both row by row.

        Args:
            element: flat, 0 to all of them.
            shape: of the tensor.
        """
        if element >= prod(shape):
            return self.elements
        count = 0
        for dim, place in enumerate(np.unravel_index(element, shape)):
            inside, rest = int(place) - self.offsets[dim], prod(self.sizes[dim + 1 :])
            count += min(max(inside, 0), self.sizes[dim]) * rest
            if not 0 <= inside < self.sizes[dim]:
                break
        return count

    def in_one_piece(self, shape: tuple[int, ...]) -> bool:
        """Whether its elements are neighbours in the tensor."""
        long = [dim for dim, size in enumerate(self.sizes) if size > 1]
        return not long or self.sizes[long[0] + 1 :] == shape[long[0] + 1 :]

    def places(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Where the elements [first, last) of the box lie in the flat tensor, int64 [n]."""
        if not shape:
            return np.zeros(last - first, np.int64)
        found = np.unravel_index(np.arange(first, last), self.sizes)
        moved = tuple(place + offset for place, offset in zip(found, self.offsets, strict=True))
        return np.ravel_multi_index(moved, shape)


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, and the tensor that it is stored as."""

    box: Box
    name: str


@dataclass(frozen=True, slots=True)
class Parted:
    """A tensor, and the parts that it lies in."""

    spec: TensorSpec
    parts: tuple[Part, ...]


def parted(spec: TensorSpec, parts: Sequence[Part], path: str) -> Parted:
    """A tensor, once its parts are all of it.

    Args:
        spec: the whole.
        parts: in any order; copies of one box count once, the first of them.
        path: for messages.

    Raises:
        SourceError: a part lies beyond the tensor or over another one, or elements lack.
    """
    shape, kept = spec.shape, {part.box: part for part in reversed(parts) if part.box.elements}
    for box in kept:
        fits = len(box.offsets) == len(box.sizes) == len(shape)
        if not fits or any(_end(box, dim) > n for dim, n in enumerate(shape)):
            raise _wrong(spec, path, f"has a part of shape {list(box.sizes)} at {list(box.offsets)}", "inside of it")
    found = sum(box.elements for box in kept)
    if (over := _overlap(sorted(kept, key=lambda box: box.offsets), spec, path)) is not None:
        text = f"has two parts that overlap, at {list(over[0].offsets)} and {list(over[1].offsets)}"
        raise _wrong(spec, path, text, "every element once")
    if found != spec.elements:
        raise _wrong(spec, path, f"has {found} of its {spec.elements} elements in its parts", "all of them")
    return Parted(spec, tuple(sorted(kept.values(), key=lambda part: part.box.offsets)))


def _overlap(boxes: list[Box], spec: TensorSpec, path: str) -> tuple[Box, Box] | None:
    """Two boxes, sorted by offsets, that have an element in common; None without such."""
    divided = [d for d in range(len(spec.shape)) if any(box.sizes[d] != spec.shape[d] for box in boxes)]
    if len(divided) <= 1:
        pairs = pairwise(boxes)
        return next(((a, b) for a, b in pairs if not divided or b.offsets[divided[0]] < _end(a, divided[0])), None)
    if len(boxes) > MOST_PARTS:
        raise _wrong(spec, path, f"has {len(boxes)} parts, divided along {len(divided)} dimensions", f"{MOST_PARTS}")
    low, high = np.array([b.offsets for b in boxes]), np.array([[_end(b, d) for d in range(len(spec.shape))]
                                                                for b in boxes])  # fmt: skip
    for i in range(len(boxes) - 1):
        meets = ((low[i] < high[i + 1 :]) & (low[i + 1 :] < high[i])).all(axis=1)
        if meets.any():
            return boxes[i], boxes[i + 1 + int(np.argmax(meets))]
    return None


def _end(box: Box, dim: int) -> int:
    return box.offsets[dim] + box.sizes[dim]


def _wrong(spec: TensorSpec, path: str, found: str, expected: str) -> SourceError:
    text = f"{path}: tensor {abbreviated(spec.name)} {found}"
    return SourceError(text, expected=expected, todo=AGAIN, where=Where(tensor=spec.name, path=path))


@dataclass(frozen=True, slots=True)
class _Range:
    """What a block takes of a part: its elements [first, last)."""

    part: Part
    block: Block
    """The same, of the tensor that it is stored as."""


class PartedWeights:
    """Tensors that lie in parts. A Weights."""

    def __init__(self, text: str, inner: Weights, tensors: Mapping[str, Parted]) -> None:
        """See the class.

        Args:
            text: what the user wrote, for messages.
            inner: has the parts, by their names.
            tensors: by name.
        """
        self._text, self._inner, self._tensors = text, inner, tensors
        self.specs: Mapping[str, TensorSpec] = {name: tensor.spec for name, tensor in tensors.items()}

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        out = room_for(block, self.specs, self._text, out)
        shape = self.specs[block.tensor.name].shape
        for found in self._ranges(block):
            box, first, last = found.part.box, found.block.start, found.block.stop
            if box.in_one_piece(shape):
                at = int(box.places(first, first + 1, shape)[0]) - block.start
                self._inner.read(found.block, out[at : at + last - first])
                continue
            for low in range(first, last, STEP):
                high = min(low + STEP, last)
                out[box.places(low, high, shape) - block.start] = self._inner.read(Block(found.block.tensor, low, high))
        return out

    def extents(self, block: Block) -> Extents:
        """See Weights.extents; neighbouring parts of whole rows are a block byte for byte."""
        if block.tensor.name not in self._tensors or block.stop > self.specs[block.tensor.name].elements:
            return NOWHERE
        shape, ranges = self.specs[block.tensor.name].shape, list(self._ranges(block))
        found = [self._inner.extents(each.block) for each in ranges[:TOGETHER]]
        whole = len(ranges) == len(found) and all(each.part.box.in_one_piece(shape) for each in ranges)
        parts = tuple(part for extents in found for part in extents.parts)
        return Extents(parts, whole and all(extents.verbatim for extents in found))

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        return (Stored(self.specs[name].dtype, self.specs[name].elements),)

    def _ranges(self, block: Block) -> Iterator[_Range]:
        """What a block takes of each part, where it takes something."""
        tensor = self._tensors[block.tensor.name]
        for part in tensor.parts:
            first = part.box.before(block.start, tensor.spec.shape)
            last = part.box.before(block.stop, tensor.spec.shape)
            if first < last:
                yield _Range(part, Block(self._inner.specs[part.name], first, last))
