"""methods/calibrate.py: a merge that someone else made, its distance from the base scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added
from agentmerge.kernels.formulas import Stretched

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.kernels.cpu.loops.vectors import Lanes
    from agentmerge.tensors import Array


@inlined
def stretched(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Stretched) -> Lanes:
    """Base + scale * (merged - base)."""
    return added(base, (decode(sources.extra[0], sources.extra_codes[0], i) - base) * settings.scale)


merge = merging(stretched, Stretched)
