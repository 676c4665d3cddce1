"""Sparse deltas over a checkpoint: the elements that changed, by flat index, each with its new value.

    NAME.indices   [n] int32 (or int64), strictly increasing: places in the flat tensor NAME
    NAME.values    [n] in the tensor's own dtype: what stands there now

Values, not differences, so nothing is rounded. Steps of a chain lie over one another, the last on top. A block reads
the range of indices that fall into it, found by halving, and looks that they increase and stay inside: as the ranges of
neighbouring blocks meet, a pass over all blocks has looked at every index.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.sources.placed import room_for
from agentmerge.sources.source import NOWHERE, Extents
from agentmerge.tensors import Array, Block

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.sources.source import Stored, Weights
    from agentmerge.tensors import TensorSpec

INDICES, VALUES = ".indices", ".values"
UNSORTED = "A delta has every place once, in the order of the tensor: sort it by index and save it again."
FEW = 512
"""Indices that are read at once when the range has become this short."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one step changes of one tensor."""

    weights: Weights
    name: str
    """As the step calls it."""
    path: str
    """Of its file, for messages."""

    @property
    def indices(self) -> TensorSpec:
        """Of the places."""
        return self.weights.specs[self.name + INDICES]

    def over(self, block: Block, out: Array) -> None:
        """Put the new values of a block into `out`.

        Raises:
            SourceError: its indices do not increase, or lie outside of the tensor.
        """
        first = 0 if block.start == 0 else self._place(block.start)
        last = self.indices.elements if block.stop == block.tensor.elements else self._place(block.stop)
        if first == last:
            return
        if first > last:
            raise self._unsorted()
        found = self.weights.read(Block(self.indices, first, last)).astype(np.int64)
        if found[0] < block.start or found[-1] >= block.stop or (np.diff(found) <= 0).any():
            raise self._unsorted()
        values = self.weights.specs[self.name + VALUES]
        out[found - block.start] = self.weights.read(Block(values, first, last))

    def _place(self, element: int) -> int:
        """How many of the places, if they increase, lie before an element."""
        low, high = 0, self.indices.elements
        while high - low > FEW:
            middle = (low + high) // 2
            if int(self.weights.read(Block(self.indices, middle, middle + 1))[0]) < element:
                low = middle + 1
            else:
                high = middle
        return low + int(np.searchsorted(self.weights.read(Block(self.indices, low, high)), element))

    def _unsorted(self) -> SourceError:
        where = Where(tensor=self.name + INDICES, path=self.path)
        found = f"{self.path}: tensor {abbreviated(self.name + INDICES)} does not increase, or leaves its tensor"
        return SourceError(found, expected="every place once, in order", todo=UNSORTED, where=where)


class DeltaWeights:
    """A checkpoint and the steps that lie over it. A Weights."""

    def __init__(
        self,
        text: str,
        base: Weights,
        specs: Mapping[str, TensorSpec],
        steps: Mapping[str, Sequence[Changes]],
    ) -> None:
        """See the class.

        Args:
            text: what the user wrote, for messages.
            base: what they lie over.
            specs: its tensors that are read.
            steps: by name, in the order in which they were made.
        """
        self._text, self._base, self._steps, self.specs = text, base, steps, specs

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        out = room_for(block, self.specs, self._text, out)
        self._base.read(self._own(block), out)
        return self.put_over(block, out, out)

    def under(self, block: Block) -> tuple[Weights, Block] | None:
        """See Over.under."""
        return (self._base, self._own(block)) if block.tensor.name in self.specs else None

    def put_over(self, block: Block, old: Array, out: Array) -> Array:
        """See Over.put_over."""
        if old is not out:
            np.copyto(out, old)
        for changes in self._steps.get(block.tensor.name, ()):
            changes.over(self._own(block), out)
        return out

    def _own(self, block: Block) -> Block:
        return Block(self.specs[block.tensor.name], block.start, block.stop)

    def extents(self, block: Block) -> Extents:
        """See Weights.extents; which part of the indices a block reads only reading shows."""
        name = block.tensor.name
        if name not in self.specs:
            return NOWHERE
        found = self._base.extents(block)
        return replace(found, verbatim=False) if name in self._steps else found

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        return self._base.stored(name)
