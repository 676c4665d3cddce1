"""The compiled loop of a full probe; survey/profiling.py defines every count. Importing it compiles or loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.floats import decode
from agentmerge.kernels.summing import _finish
from agentmerge.kernels.tallies import (
    add_energies,
    tally_lost,
    tally_magnitudes,
    tally_pairs,
    tally_set,
    tally_steps,
    tally_survived,
)
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

MIX = 0x9E3779B1
"""survey.integrity.MIX; the rooms are strangers, a test keeps them equal."""

_COUNTS, _TABLE, _DOUBLES = types.int64[:, ::1], types.int32[:, ::1], types.float64[:, ::1]


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
        tally_magnitudes(magnitude(tau), changed[t], room, address, magnitudes[t])
    mean = moved / to_float(maximum(number, fill_u32(1)))
    small = word(fill_f32(threshold) >= magnitude(mean))
    for t in range(changed.size):
        per_agent[0, t] += population(changed[t])
        per_agent[1, t] += population(changed[t] & ~many)
        per_agent[2, t] += population(changed[t] & many)
        per_agent[3, t] += population(changed[t] & up & down)
        per_agent[4, t] += population(changed[t] & many & small)
    add_energies(pairs, rows, changed, many, mean, i, places)
    tally_lost(base + total * share, base, changed, many, lost[0])
    tally_lost(select(mask(some & ~many), value, base + mean), base, changed, many, lost[1])
    if some & ~many:
        tally_survived(base, own, value, changed, many, multipliers, survived)


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
                tally_steps(sources, t, i, changed[t], steps)
            tally_set(keys, room, address, table)
            if some:
                tally_pairs(pairs, rows, changed, raised, per_pair)
                _tally_agents(
                    sources, i, base, some, many, threshold, multipliers, share, pairs, rows, changed, raised, room,
                    address, per_agent, magnitudes, lost, survived, places,
                )  # fmt: skip
        _finish(running, leaves, first // LEAF)
