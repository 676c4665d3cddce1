"""Weights seen under other names or shapes: tensors laid together from flat ranges of stored ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.sources.source import Extents, Stored
from agentmerge.tensors import DTYPES, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from agentmerge.files.reading import Extent
    from agentmerge.sources.source import Weights


@dataclass(frozen=True, slots=True)
class FlatRange:
    """Consecutive elements of a stored tensor, or zeros where no weights are named."""

    weights: Weights | None
    tensor: str
    start: int
    elements: int

    @classmethod
    def all_of(cls, weights: Weights, tensor: str) -> FlatRange:
        """One stored tensor from its first element to its last."""
        return cls(weights, tensor, 0, weights.specs[tensor].elements)


class RangeView:
    """Tensors made of flat ranges: renamed, cut out of a stack, stacked, or extended. A Weights."""

    def __init__(
        self, inner: Weights, specs: Mapping[str, TensorSpec], ranges: Mapping[str, tuple[FlatRange, ...]]
    ) -> None:
        """See the class.

        Args:
            inner: whose tensors they mostly are.
            specs: the tensors of the view.
            ranges: of each tensor, in order; one that is absent here is read from `inner` under its name.
        """
        self._inner = inner
        self.specs = specs
        self._ranges = ranges

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        spec = self.specs[block.tensor.name]
        if block.tensor.name not in self._ranges:
            return self._inner.read(block, out)
        out = np.empty(block.elements, DTYPES[spec.dtype]) if out is None else out
        for weights, part, at in self._parts(block):
            room = out[at : at + part.elements]
            if weights is None:
                room.fill(0)
            elif weights.specs[part.tensor.name].dtype == spec.dtype:
                weights.read(part, room)
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    room[:] = weights.read(part).astype(room.dtype)
        return out

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        if block.tensor.name not in self._ranges:
            return self._inner.extents(block)
        dtype, verbatim = self.specs[block.tensor.name].dtype, True
        found: list[Extent] = []
        for weights, part, _ in self._parts(block):
            if weights is None:
                verbatim = False
                continue
            lying = weights.extents(part)
            found += lying.parts
            verbatim &= lying.verbatim and weights.specs[part.tensor.name].dtype == dtype
        return Extents(tuple(found), verbatim)

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        if name not in self._ranges:
            return self._inner.stored(name)
        spec = self.specs[name]
        block = Block(spec, 0, spec.elements)
        return tuple(
            piece
            for weights, part, _ in self._parts(block)
            for piece in ((Stored(spec.dtype, part.elements),) if weights is None else _pieces(weights, part))
        )

    def _parts(self, block: Block) -> Iterator[tuple[Weights | None, Block, int]]:
        """The stored blocks that a block of the view is made of, and where each begins in it."""
        first = 0
        for part in self._ranges[block.tensor.name]:
            low, high = max(block.start, first), min(block.stop, first + part.elements)
            if low < high:
                spec = block.tensor if part.weights is None else part.weights.specs[part.tensor]
                shift = part.start - first
                yield part.weights, Block(spec, low + shift, high + shift), low - block.start
            first += part.elements


def _pieces(weights: Weights, part: Block) -> Iterator[Stored]:
    """How the elements of a stored block are stored."""
    first = 0
    for stored in weights.stored(part.tensor.name):
        low, high = max(part.start - first, 0), min(part.stop - first, stored.elements)
        if low < high:
            yield stored.cut(low, high)
        first += stored.elements


def without(weights: Weights, left_out: Container[str]) -> RangeView:
    """The weights without some of their tensors."""
    return RangeView(weights, {name: spec for name, spec in weights.specs.items() if name not in left_out}, {})


def renamed(weights: Weights, name: str, target: str) -> RangeView:
    """The weights with one tensor under another name."""
    specs = {target if n == name else n: spec for n, spec in weights.specs.items()}
    specs[target] = TensorSpec(target, weights.specs[name].dtype, weights.specs[name].shape)
    return RangeView(weights, specs, {target: (FlatRange.all_of(weights, name),)})


def widest(dtypes: Iterable[str]) -> str:
    """A dtype that holds the numbers of all these exactly, so that tensors laid together keep every bit."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    return "F64" if "F64" in found else "F32"
