"""Weights read in the base's dtypes: what a trainer keeps in float32 as it would have been saved."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.sources.placed import room_for
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.sources.source import Stored
from agentmerge.tensors import DTYPES, Array, Block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.source import Extents, Weights
    from agentmerge.tensors import TensorSpec

NARROWER = {"F64": ("F32", "F16", "BF16"), "F32": ("F16", "BF16")}
"""By dtype, those that a number is rounded to."""


class RoundedWeights:
    """Weights of which some are read in a narrower dtype: to nearest, ties to even, as torch casts. A Weights."""

    def __init__(self, text: str, inner: Weights, dtypes: Mapping[str, str]) -> None:
        """See the class.

        Args:
            text: what the user wrote, for messages.
            inner: as stored.
            dtypes: of the tensors that are rounded.
        """
        self._text, self._inner, self._dtypes = text, inner, dtypes
        self.specs: Mapping[str, TensorSpec] = {
            name: replace(spec, dtype=dtypes[name]) if name in dtypes else spec for name, spec in inner.specs.items()
        }

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        name = block.tensor.name
        if name not in self._dtypes:
            return self._inner.read(block, out)
        out = room_for(block, self.specs, self._text, out)
        with np.errstate(over="ignore"):  # inf, which a merge refuses by its name
            out[:] = self._inner.read(Block(self._inner.specs[name], block.start, block.stop)).astype(out.dtype)
        return out

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        found = self._inner.extents(block)
        return replace(found, verbatim=False) if block.tensor.name in self._dtypes else found

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored: what the numbers went through last."""
        rounded = name in self._dtypes
        return (Stored(self._dtypes[name], self.specs[name].elements),) if rounded else self._inner.stored(name)


def narrower(specs: Mapping[str, TensorSpec], base: Mapping[str, TensorSpec]) -> dict[str, str]:
    """The tensors that have a wider dtype than the base's, and the base's.

    Args:
        specs: as stored.
        base: matched by name, prefixes aside; a tensor that it has no match for follows most of its elements.
    """
    known = by_common_name(base)
    usual = Counter[str]()
    for spec in base.values():
        usual[spec.dtype] += spec.elements
    most = usual.most_common(1)[0][0] if usual else ""
    found: dict[str, str] = {}
    for name, spec in specs.items():
        match = name if name in base else known.get(common_name(name))
        dtype = base[match].dtype if match is not None else most
        if dtype in NARROWER.get(spec.dtype, ()) and dtype in DTYPES:
            found[name] = dtype
    return found
