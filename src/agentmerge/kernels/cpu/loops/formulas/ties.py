"""methods/ties.py: trim, elect, disjoint mean, scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added, sign_of
from agentmerge.kernels.cpu.loops.vectors import Lanes, fill_f32, load_f32, magnitude, select
from agentmerge.kernels.formulas import Ties

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array


@inlined
def _kept(rows: Array, at: int, limit: Array, t: int) -> Lanes:
    """A task vector after the trim; no limits, no trim."""
    tau = load_f32(rows[t] + at)
    if limit.size == 0:
        return tau
    return select(magnitude(tau) >= limit[t], tau, fill_f32(0.0))


@inlined
def elected(rows: Array, at: int, weight: Array, limit: Array) -> Lanes:
    """The sign of the weighted sum of the trimmed task vectors."""
    total = fill_f32(0.0)
    for t in range(rows.size):
        total += _kept(rows, at, limit, t) * weight[t]
    return sign_of(total)


@inlined
def ties(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Ties) -> Lanes:
    """Base + scale * disjoint mean, or sum."""
    weight, limit = settings.weight, settings.limit
    sign = elected(rows, at, weight, limit)
    sign = select(sign == 0.0, fill_f32(settings.zero), sign)
    total, divisor = fill_f32(0.0), fill_f32(0.0)
    for t in range(rows.size):
        update = _kept(rows, at, limit, t) * weight[t]
        agrees = update * sign > 0.0  # where the sign is 0 those of sign 0 would agree, and add up to 0 too
        total = select(agrees, total + update, total)
        divisor = select(agrees, divisor + weight[t], divisor)
    if settings.mean:
        total = select(divisor == 0.0, fill_f32(0.0), total / divisor)
    return added(base, total * settings.scale)


merge = merging(ties, Ties)
