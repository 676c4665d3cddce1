"""Tensors that do not lie row by row in their file, such as a transposed one, seen as if they did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.sources.placed import room_for
from agentmerge.sources.source import NOWHERE, Extents, Stored
from agentmerge.tensors import Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.files.header import Strided
    from agentmerge.sources.folder import FolderWeights
    from agentmerge.sources.source import Weights


def in_rows(weights: FolderWeights, text: str) -> Weights:
    """The weights themselves, or as seen with every tensor row by row."""
    return StridedWeights(weights, weights.strided, text) if weights.strided else weights


class StridedWeights:
    """Weights of which some lie along strides; a block reads the range that they lie over. A Weights."""

    def __init__(self, inner: Weights, strided: Mapping[str, Strided], text: str) -> None:
        """See the class.

        Args:
            inner: has the range of each, in one dimension.
            strided: where its elements lie in that.
            text: what the user wrote, for messages.
        """
        self._inner, self._strided, self._text = inner, strided, text
        self.specs: Mapping[str, TensorSpec] = {
            name: replace(spec, shape=strided[name].shape) if name in strided else spec
            for name, spec in inner.specs.items()
        }

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        layout = self._strided.get(block.tensor.name)
        if layout is None:
            return self._inner.read(block, out)
        out = room_for(block, self.specs, self._text, out)
        if not block.elements:
            return out
        places = np.unravel_index(np.arange(block.start, block.stop), layout.shape)
        index = sum(place * stride for place, stride in zip(places, layout.strides, strict=True))
        first, last = int(np.min(index)), int(np.max(index)) + 1
        lying = self._inner.read(Block(self._inner.specs[block.tensor.name], first, last))
        np.take(lying, index - first, out=out)
        return out

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        name = block.tensor.name
        if name not in self._strided:
            return self._inner.extents(block)
        if block.stop > self.specs[name].elements:
            return NOWHERE
        raw = self._inner.specs[name]
        return replace(self._inner.extents(Block(raw, 0, raw.elements)), verbatim=False)

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        return (Stored(self.specs[name].dtype, self.specs[name].elements),)
