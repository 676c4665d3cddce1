"""Take a merge that someone else made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.formulas import Given

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.kernels.cpu.loops.vectors import Lanes
    from agentmerge.tensors import Array


@inlined
def given(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Given) -> Lanes:
    """The merge itself."""
    return decode(sources.extra[0], sources.extra_codes[0], i)


merge = merging(given, Given)
