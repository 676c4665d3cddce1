"""What each method makes of the task vectors of one vector of elements; the formulas stand in methods. Knows no files.

Task vectors lie in memory, agent t's at rows[t] + offset. `own` holds the value of the last agent that changed each
element. Sums run over the agents in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.call import SHARED, UNIQUE
from agentmerge.kernels.floats import decode
from agentmerge.kernels.vectors import (
    Lanes,
    fill_f32,
    fill_u8,
    inlined,
    load_f32,
    magnitude,
    mask,
    ones,
    select,
)

if TYPE_CHECKING:
    from agentmerge.tensors import Array


@inlined
def added(base: Lanes, update: Lanes) -> Lanes:
    """methods.base.added."""
    return select(update == 0.0, base, base + update)


@inlined
def sign_of(x: Lanes) -> Lanes:
    """-1, 0 or 1, and NaN of NaN."""
    return select(x > 0.0, fill_f32(1.0), select(x < 0.0, fill_f32(-1.0), x))


@inlined
def linear(rows: Array, offset: int, weight: Array, scale: float, divisor: float) -> Lanes:
    """The update of task_arithmetic and linear: weighted sum * scale / divisor."""
    total = fill_f32(0.0)
    for t in range(rows.size):
        total += load_f32(rows[t] + offset) * weight[t]
    update = total * scale
    if divisor != 1:
        update = update / divisor
    return update


@inlined
def _kept(rows: Array, offset: int, limit: Array, t: int) -> Lanes:
    """A task vector after the trim; no limits, no trim."""
    tau = load_f32(rows[t] + offset)
    if limit.size == 0:
        return tau
    return select(magnitude(tau) >= limit[t], tau, fill_f32(0.0))


@inlined
def elected(rows: Array, offset: int, weight: Array, limit: Array) -> Lanes:
    """The sign of the weighted sum of the trimmed task vectors."""
    total = fill_f32(0.0)
    for t in range(rows.size):
        total += _kept(rows, offset, limit, t) * weight[t]
    return sign_of(total)


@inlined
def ties(rows: Array, offset: int, weight: Array, limit: Array, zero: float, scale: float) -> Lanes:
    """The update of ties: scale * disjoint mean."""
    sign = elected(rows, offset, weight, limit)
    sign = select(sign == 0.0, fill_f32(zero), sign)
    total, divisor = fill_f32(0.0), fill_f32(0.0)
    for t in range(rows.size):
        update = _kept(rows, offset, limit, t) * weight[t]
        agrees = update * sign > 0.0  # where the sign is 0 those of sign 0 would agree, and add up to 0 too
        total = select(agrees, total + update, total)
        divisor = select(agrees, divisor + weight[t], divisor)
    return select(divisor == 0.0, fill_f32(0.0), total / divisor) * scale


@inlined
def fisher(
    rows: Array, offset: int, extra: Array, codes: Array, i: int, weight: Array, floor: float, scale: float
) -> Lanes:
    """The update of fisher; `weight` holds the coefficients."""
    total, divisor, important = fill_f32(0.0), fill_f32(0.0), fill_f32(0.0)
    for t in range(rows.size):
        importance = decode(extra[t], codes[t], i)
        factor = (importance + floor) * weight[t]
        total += load_f32(rows[t] + offset) * factor
        divisor += factor
        important = select(importance != 0.0, fill_f32(1.0), important)
    mean = total / select(divisor == 0.0, fill_f32(1.0), divisor)
    return select(important != 0.0, mean * scale, fill_f32(0.0))


@inlined
def region(rows: Array, offset: int, base: Lanes, value: Lanes, threshold: float, agent: int, keep: int) -> Lanes:
    """The merged elements of region: `value` inside, the base elsewhere."""
    count, inside = fill_u8(0), mask(0)
    for t in range(rows.size):
        by = magnitude(load_f32(rows[t] + offset)) > threshold
        count += ones(by)
        if t == agent:
            inside = by
    if keep == UNIQUE:
        inside = inside & (count == 1)
    elif keep == SHARED:
        inside = inside & (count > 1)
    return select(inside, value, base)
