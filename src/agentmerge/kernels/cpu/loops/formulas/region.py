"""methods/region.py: one region of one agent's changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added
from agentmerge.kernels.cpu.loops.vectors import Lanes, fill_u8, load_f32, magnitude, mask, ones, select
from agentmerge.kernels.formulas import SHARED, UNIQUE, Region

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array


@inlined
def region(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Region) -> Lanes:
    """Base + factor * tau inside, the agent's own value at factor 1; the base elsewhere."""
    agent, count, inside = settings.agent, fill_u8(0), mask(0)
    value = added(base, load_f32(rows[agent] + at) * settings.factor)
    if settings.factor == 1 and sources.taus.size == 0:
        value = decode(sources.addresses[agent + 1], sources.codes[agent + 1], i)
    for t in range(rows.size):
        by = magnitude(load_f32(rows[t] + at)) > settings.threshold
        count += ones(by)
        if t == agent:
            inside = by
    if settings.keep == UNIQUE:
        inside = inside & (count == 1)
    elif settings.keep == SHARED:
        inside = inside & (count > 1)
    return select(inside, value, base)


merge = merging(region, Region)
