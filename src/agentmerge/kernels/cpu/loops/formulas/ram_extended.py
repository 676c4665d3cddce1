"""methods/ram.py: everything that it adds to the paper, and RAM of task vectors that a wrapping method made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added, sign_of
from agentmerge.kernels.cpu.loops.vectors import (
    Lanes,
    fill_f32,
    fill_u8,
    load_f32,
    magnitude,
    maximum,
    ones,
    select,
    to_float,
)
from agentmerge.kernels.formulas import ELECT, IMPORTANCE, LARGEST, WINNER, RamExtended, Shared

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array


@inlined
def _mean(total: Lanes, count: Lanes, power: float, table: Array) -> Lanes:
    """Total / count^power, a count of 0 taken as 1; table[k] is k^power."""
    if power == 0:
        return total
    if power == 1:
        return total / to_float(maximum(count, fill_u8(1)))
    divisor = fill_f32(1.0)
    for k in range(2, table.size):
        divisor = select(count == k, fill_f32(table[k]), divisor)
    return total / divisor


@inlined
def _winner(sources: Sources, rows: Array, at: int, i: int, threshold: float, shared: Shared) -> Lanes:
    """The most important update, of equally important ones the largest, of equal ones the first."""
    taken, most, size, mine = fill_f32(0.0), fill_f32(-1.0), fill_f32(-1.0), fill_f32(0.0)
    for t in range(rows.size):
        tau = load_f32(rows[t] + at)
        update = tau * shared.weight[t]
        if shared.choice == WINNER:
            mine = decode(sources.extra[t], sources.extra_codes[t], i)
        better = (magnitude(tau) > threshold) & ((mine > most) | ((mine == most) & (magnitude(update) > size)))
        taken, most = select(better, update, taken), select(better, mine, most)
        size = select(better, magnitude(update), size)
    return taken


@inlined
def shared_update(sources: Sources, rows: Array, at: int, i: int, threshold: float, shared: Shared) -> Lanes:
    """methods.shared.shared_update; agent t's task vector lies at the address rows[t] + at."""
    weight, choice = shared.weight, shared.choice
    if choice in (WINNER, LARGEST):
        return _winner(sources, rows, at, i, threshold, shared)
    total, divisor, important, count = fill_f32(0.0), fill_f32(0.0), fill_f32(0.0), fill_u8(0)
    for t in range(rows.size):
        tau = load_f32(rows[t] + at)
        by, update = magnitude(tau) > threshold, tau * weight[t]
        total = select(by, total + update, total)
        count += ones(by)
        if choice == IMPORTANCE:
            importance = decode(sources.extra[t], sources.extra_codes[t], i)
            divisor = select(by, divisor + importance, divisor)
            important = select(by, important + importance * update, important)
    if choice == IMPORTANCE:
        return select(divisor == 0.0, _mean(total, count, 1.0, shared.table), important / divisor)
    if choice == ELECT:
        sign, total, count = sign_of(total), fill_f32(0.0), fill_u8(0)
        for t in range(rows.size):
            tau = load_f32(rows[t] + at)
            update = tau * weight[t]
            by = (magnitude(tau) > threshold) & (update * sign > 0.0)
            total = select(by, total + update, total)
            count += ones(by)
    return _mean(total, count, shared.power, shared.table)


@inlined
def ram_extended(
    sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: RamExtended
) -> Lanes:
    """The merged elements of any RAM; where the task vectors are not the agents' own, neither is `own`."""
    threshold, scale, weight = settings.threshold, settings.scale, settings.shared.weight
    shared = shared_update(sources, rows, at, i, threshold, settings.shared)
    given, single, count = sources.taus.size > 0, base, fill_u8(0)
    for t in range(rows.size):
        tau = load_f32(rows[t] + at)
        by = magnitude(tau) > threshold
        if scale[t] != 1 or weight[t] != 1:
            value = added(base, tau * weight[t] * scale[t])
        elif given:
            value = tau + base
        else:
            value = own
        single = select(by, value, single)
        count += ones(by)
    return select(count == 0, base, select(count == 1, single, added(base, shared)))


merge = merging(ram_extended, RamExtended)
