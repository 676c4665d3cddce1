"""methods/sce.py: select, calculate, erase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added
from agentmerge.kernels.cpu.loops.vectors import Lanes, fill_f32, load_f32, select
from agentmerge.kernels.formulas import Sce

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array


@inlined
def variance_of(rows: Array, at: int) -> Lanes:
    """Over the agents."""
    mean, total, count = fill_f32(0.0), fill_f32(0.0), np.float32(rows.size)
    for t in range(rows.size):
        mean += load_f32(rows[t] + at)
    mean = mean / count
    for t in range(rows.size):
        apart = load_f32(rows[t] + at) - mean
        total += apart * apart
    return total / count


@inlined
def sce(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Sce) -> Lanes:
    """Base + scale * the mean of those that have the sign of the vote, by their shares."""
    zero, kept = fill_f32(0.0), fill_f32(1.0)
    if settings.limit != 0:
        kept = select(variance_of(rows, at) >= settings.limit, kept, zero)
    vote, total, divisor = zero, zero, zero
    for t in range(rows.size):
        vote += select(kept != 0.0, load_f32(rows[t] + at), zero) * settings.weight[t]
    sign = select(zero > vote, fill_f32(-1.0), fill_f32(1.0))
    for t in range(rows.size):
        tau = select(kept != 0.0, load_f32(rows[t] + at), zero)
        agrees = tau * sign > 0.0
        total = select(agrees, total + tau * settings.share[t], total)
        divisor = select(agrees, divisor + settings.share[t], divisor)
    mean = total / select(divisor > settings.floor, divisor, fill_f32(settings.floor))
    return added(base, mean * settings.scale)


merge = merging(sce, Sce)
