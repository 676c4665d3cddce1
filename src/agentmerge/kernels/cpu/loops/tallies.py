"""What the loop of a full probe does to one vector of elements, a count each. Knows no statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels.arguments import BF16, F16, F32, MAGNITUDE_SHIFT
from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import round_to
from agentmerge.kernels.cpu.loops.sums import add_products
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    Lanes,
    bits_of,
    fill_f32,
    fill_u32,
    load_f32,
    load_u16,
    lowest,
    mask,
    maximum,
    population,
    select,
    store,
    word,
)

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.kernels.cpu.full import Room
    from agentmerge.tensors import Array

_ONE = np.uint64(1)


@inlined
def _distance_16(left: Lanes, right: Lanes) -> Lanes:
    """Numbers between two stored ones of 16 bits, |order(left) - order(right)|."""
    a, b = left & 0x7FFF, right & 0x7FFF
    top = maximum(a, b)
    return select((left ^ right) < 0x8000, top + top - a - b, a + b)


@inlined
def _distance_32(left: Lanes, right: Lanes) -> Lanes:
    """The same of 32 bits."""
    a, b = left & 0x7FFFFFFF, right & 0x7FFFFFFF
    top = maximum(a, b)
    return select((left ^ right) < 0x80000000, top + top - a - b, a + b)


@inlined
def tally_steps(sources: Sources, t: int, i: int, by: Any, steps: Array) -> None:
    """Add to steps[t], the changed elements at least 1, 2, 3, 5 and 9 steps away."""
    steps[t, 0] += population(by)
    if sources.codes[0] == F32:
        far = _distance_32(
            bits_of(load_f32(sources.addresses[t + 1] + 4 * i)), bits_of(load_f32(sources.addresses[0] + 4 * i))
        )
        steps[t, 1] += population(by & word(far >= 2))
        steps[t, 2] += population(by & word(far >= 3))
        steps[t, 3] += population(by & word(far >= 5))
        steps[t, 4] += population(by & word(far >= 9))
    else:
        near = _distance_16(load_u16(sources.addresses[t + 1] + 2 * i), load_u16(sources.addresses[0] + 2 * i))
        steps[t, 1] += population(by & word(near >= 2))
        steps[t, 2] += population(by & word(near >= 3))
        steps[t, 3] += population(by & word(near >= 5))
        steps[t, 4] += population(by & word(near >= 9))


@inlined
def tally_set(keys: Lanes, room: Room, table: Array) -> None:
    """Count each element at its key, in one of four tables by turns."""
    store(room.address, keys)
    for j in range(0, LANES, 4):
        table[0, room.keys[j]] += 1
        table[1, room.keys[j + 1]] += 1
        table[2, room.keys[j + 2]] += 1
        table[3, room.keys[j + 3]] += 1


@inlined
def tally_magnitudes(size: Lanes, by: Any, room: Room, counts: Array) -> None:
    """Count the changed lanes by the upper bits of |tau|."""
    store(room.address, bits_of(size) >> MAGNITUDE_SHIFT)
    while by:
        counts[room.keys[lowest(by)]] += 1
        by &= by - _ONE


@inlined
def tally_lost(merged: Lanes, base: Lanes, changed: Array, many: Any, lost: Array) -> None:
    """Add to lost [dtype, region, t] what each narrow dtype stores as the base although it moved."""
    moved = word(merged != base)
    for code in (BF16, F16):
        gone = moved & word(round_to(merged, code, False, fill_u32(0)) == round_to(base, code, False, fill_u32(0)))
        if gone:
            for t in range(changed.size):
                lost[code, 0, t] += population(changed[t] & gone)
                lost[code, 1, t] += population(changed[t] & gone & ~many)


@inlined
def tally_survived(
    base: Lanes, tau: Lanes, own: Lanes, changed: Array, many: Any, multipliers: Array, survived: Array
) -> None:
    """Add to survived [dtype, multiplier, t] the unique elements that each dtype stores as another number than own."""
    for code in (BF16, F16, F32):
        plain = round_to(own, code, False, fill_u32(0))
        for m in range(multipliers.size):
            scaled = base + tau * multipliers[m]
            differs = word(round_to(scaled, code, False, fill_u32(0)) != plain) & ~many
            if differs:
                for t in range(changed.size):
                    survived[code, m, t] += population(changed[t] & differs)


@inlined
def tally_pairs(pairs: Array, rows: Array, changed: Array, raised: Array, counts: Array) -> None:
    """Add to counts [2, p] the elements that both changed in one direction, and by the same amount."""
    for p in range(len(pairs)):
        s, t = pairs[p, 0], pairs[p, 1]
        both = changed[s] & changed[t]
        counts[0, p] += population(both & ~(raised[s] ^ raised[t]))
        counts[1, p] += population(both & word(load_f32(rows[s]) == load_f32(rows[t])))


@inlined
def add_energies(pairs: Array, rows: Array, changed: Array, many: Any, mean: Lanes, i: int, places: Array) -> None:
    """Add a vector to the running sums of survey.full.question.Energy."""
    agents, zero = changed.size, fill_f32(0.0)
    for t in range(agents):
        tau = load_f32(rows[t])
        alone, together = select(mask(changed[t] & ~many), tau, zero), select(mask(changed[t] & many), tau, zero)
        add_products(places[t], i, alone, alone)
        add_products(places[agents + t], i, together, together)
        add_products(places[2 * agents + t], i, together, mean)
    for p in range(len(pairs)):
        both = changed[pairs[p, 0]] & changed[pairs[p, 1]]
        if both:
            which, at = mask(both), 3 * agents + p
            left, right = (
                select(which, load_f32(rows[pairs[p, 0]]), zero),
                select(which, load_f32(rows[pairs[p, 1]]), zero),
            )
            add_products(places[at], i, left, right)
            add_products(places[at + len(pairs)], i, left, left)
            add_products(places[at + 2 * len(pairs)], i, right, right)
