"""The compiled loop of a full probe; survey/profiling.py defines every count. Importing it compiles or loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.floats import BF16, F16, F32, decode, round_to
from agentmerge.kernels.summing import _add, _finish
from agentmerge.kernels.vectors import (
    FLOATS,
    INTS,
    LANES,
    SOURCES,
    Lanes,
    bits_of,
    compiled,
    fill_f32,
    fill_u32,
    inlined,
    load_f32,
    load_u16,
    lowest,
    magnitude,
    mask,
    maximum,
    population,
    select,
    store,
    to_float,
    word,
)
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from agentmerge.kernels.call import Sources
    from agentmerge.tensors import Array

SHIFT, MIX = 19, 0x9E3779B1
"""survey.profiling.MAGNITUDE_SHIFT and survey.integrity.MIX; the rooms are strangers, a test keeps them equal."""

_ONE = np.uint64(1)
_COUNTS, _TABLE, _DOUBLES = types.int64[:, ::1], types.int32[:, ::1], types.float64[:, ::1]


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
def _tally_steps(sources: Sources, t: int, i: int, by: Any, steps: Array) -> None:
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
def _tally_set(keys: Lanes, room: Array, address: int, table: Array) -> None:
    """Count each element at its key, in one of four tables by turns."""
    store(address, keys)
    for j in range(0, LANES, 4):
        table[0, room[j]] += 1
        table[1, room[j + 1]] += 1
        table[2, room[j + 2]] += 1
        table[3, room[j + 3]] += 1


@inlined
def _tally_magnitudes(size: Lanes, by: Any, room: Array, address: int, counts: Array) -> None:
    """Count the changed lanes by the upper bits of |tau|."""
    store(address, bits_of(size) >> SHIFT)
    while by:
        counts[room[lowest(by)]] += 1
        by &= by - _ONE


@inlined
def _tally_lost(merged: Lanes, base: Lanes, changed: Array, many: Any, lost: Array) -> None:
    """Add to lost [dtype, region, t] what each narrow dtype stores as the base although it moved."""
    moved = word(merged != base)
    for code in (BF16, F16):
        gone = moved & word(round_to(merged, code, False, fill_u32(0)) == round_to(base, code, False, fill_u32(0)))
        if gone:
            for t in range(changed.size):
                lost[code, 0, t] += population(changed[t] & gone)
                lost[code, 1, t] += population(changed[t] & gone & ~many)


@inlined
def _tally_survived(
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
def _tally_pairs(pairs: Array, rows: Array, changed: Array, raised: Array, counts: Array) -> None:
    """Add to counts [2, p] the elements that both changed in one direction, and by the same amount."""
    for p in range(len(pairs)):
        s, t = pairs[p, 0], pairs[p, 1]
        both = changed[s] & changed[t]
        counts[0, p] += population(both & ~(raised[s] ^ raised[t]))
        counts[1, p] += population(both & word(load_f32(rows[s]) == load_f32(rows[t])))


@inlined
def _sum(pairs: Array, rows: Array, changed: Array, many: Any, mean: Lanes, i: int, places: Array) -> None:
    """Add a vector to the running sums of survey.profile.Energy."""
    agents, zero = changed.size, fill_f32(0.0)
    for t in range(agents):
        tau = load_f32(rows[t])
        alone, together = select(mask(changed[t] & ~many), tau, zero), select(mask(changed[t] & many), tau, zero)
        _add(places[t], i, alone, alone)
        _add(places[agents + t], i, together, together)
        _add(places[2 * agents + t], i, together, mean)
    for p in range(len(pairs)):
        both = changed[pairs[p, 0]] & changed[pairs[p, 1]]
        if both:
            which, at = mask(both), 3 * agents + p
            left, right = (
                select(which, load_f32(rows[pairs[p, 0]]), zero),
                select(which, load_f32(rows[pairs[p, 1]]), zero),
            )
            _add(places[at], i, left, right)
            _add(places[at + len(pairs)], i, left, left)
            _add(places[at + 2 * len(pairs)], i, right, right)


@inlined
def _tally_agents(
    sources: Sources,
    i: int,
    base: Lanes,
    some: Any,
    many: Any,
    threshold: float,
    multipliers: Array,
    share: float,
    pairs: Array,
    rows: Array,
    changed: Array,
    raised: Array,
    room: Array,
    address: int,
    per_agent: Array,
    magnitudes: Array,
    lost: Array,
    survived: Array,
    places: Array,
) -> None:
    """Add a vector to all that is counted per agent."""
    number, zero = fill_u32(0), fill_f32(0.0)
    own, value, total, moved = zero, base, zero, zero
    up = down = np.uint64(0)
    for t in range(changed.size):
        tau, by = load_f32(rows[t]), mask(changed[t])
        own = select(by, tau, own)
        value = select(by, decode(sources.addresses[t + 1], sources.codes[t + 1], i), value)
        number += select(by, fill_u32(1), fill_u32(0))
        total += tau
        moved += select(by, tau, zero)
        up |= changed[t] & raised[t]
        down |= changed[t] & ~raised[t]
        _tally_magnitudes(magnitude(tau), changed[t], room, address, magnitudes[t])
    mean = moved / to_float(maximum(number, fill_u32(1)))
    small = word(fill_f32(threshold) >= magnitude(mean))
    for t in range(changed.size):
        per_agent[0, t] += population(changed[t])
        per_agent[1, t] += population(changed[t] & ~many)
        per_agent[2, t] += population(changed[t] & many)
        per_agent[3, t] += population(changed[t] & up & down)
        per_agent[4, t] += population(changed[t] & many & small)
    _sum(pairs, rows, changed, many, mean, i, places)
    _tally_lost(base + total * share, base, changed, many, lost[0])
    _tally_lost(select(mask(some & ~many), value, base + mean), base, changed, many, lost[1])
    if some & ~many:
        _tally_survived(base, own, value, changed, many, multipliers, survived)


@compiled(
    types.void(
        SOURCES, types.int64, types.float32, FLOATS, types.float32, _COUNTS, INTS, types.uint32[::1], types.int64,
        types.int64, types.int64, types.int64,
        _TABLE, _COUNTS, _COUNTS, _COUNTS, _TABLE, types.int64[:, :, :, ::1], types.int64[:, :, ::1],
        _DOUBLES, INTS, _DOUBLES,
    )
)  # fmt: skip
def count(
    sources: Sources,
    elements: int,
    threshold: float,
    multipliers: Array,
    share: float,
    pairs: Array,
    rows: Array,
    room: Array,
    address: int,
    below: int,
    key: int,
    leaf: int,
    table: Array,
    steps: Array,
    per_pair: Array,
    per_agent: Array,
    magnitudes: Array,
    lost: Array,
    survived: Array,
    running: Array,
    places: Array,
    leaves: Array,
) -> None:
    """Add to every count; see kernels/profiles.py for what is what.

    `rows` are the addresses of a vector of scratch per agent, for its task vector.
    """
    agents = len(steps)
    changed, raised = np.zeros(agents, np.uint64), np.zeros(agents, np.uint64)
    for first in range(0, elements, LEAF):
        last = min(first + LEAF, elements)
        if ((leaf + first // LEAF) * MIX + key) & 0xFFFFFFFF >= below:
            continue
        for i in range(first, last, LANES):
            base = decode(sources.addresses[0], sources.codes[0], i)
            keys = bits_of(base) << 1 >> 24
            some = many = np.uint64(0)
            for t in range(agents):
                tau = decode(sources.addresses[t + 1], sources.codes[t + 1], i) - base
                store(rows[t], tau)
                by = magnitude(tau) > threshold
                changed[t], raised[t] = word(by), word(tau > 0.0)
                keys = select(by, keys | 256 << t, keys)
                many |= some & changed[t]
                some |= changed[t]
                _tally_steps(sources, t, i, changed[t], steps)
            _tally_set(keys, room, address, table)
            if some:
                _tally_pairs(pairs, rows, changed, raised, per_pair)
                _tally_agents(
                    sources, i, base, some, many, threshold, multipliers, share, pairs, rows, changed, raised, room,
                    address, per_agent, magnitudes, lost, survived, places,
                )  # fmt: skip
        _finish(running, leaves, first // LEAF)
