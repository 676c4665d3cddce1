"""The compiled loop of a full probe; survey/full/definitions.py defines every count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.cpu.full import Asked, Leaves, Room, Tallies
from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.signatures import (
    COUNTS,
    FLOATS,
    KEYS,
    SCRATCH,
    SMALL_COUNTS,
    SOURCES,
    SUMS,
    WORDS,
    named,
)
from agentmerge.kernels.cpu.loops.sums import finish_leaf
from agentmerge.kernels.cpu.loops.tallies import (
    add_energies,
    tally_lost,
    tally_magnitudes,
    tally_pairs,
    tally_set,
    tally_steps,
    tally_survived,
)
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    Lanes,
    bits_of,
    fill_f32,
    fill_u32,
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
from agentmerge.tensors import LEAF, MIX

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources, Sums
    from agentmerge.tensors import Array

_ASKED = named(Asked, [types.float32, FLOATS, types.float32, COUNTS])
_LEAVES = named(Leaves, [types.int64] * 3)
_ROOM = named(Room, [SCRATCH, WORDS, KEYS, types.int64])
_TALLIES = named(
    Tallies,
    [SMALL_COUNTS, *[COUNTS] * 3, SMALL_COUNTS, types.int64[:, :, :, ::1], types.int64[:, :, ::1]],
)


@inlined
def _tally_agents(
    sources: Sources,
    i: int,
    base: Lanes,
    words: tuple[Any, Any],
    asked: Asked,
    room: Room,
    tallies: Tallies,
    places: Array,
) -> None:
    """Add a vector to all that is counted per agent; `words` tell what at least one and at least two changed."""
    some, many = words
    rows, changed, raised, per_agent = room.scratch.rows, room.scratch.changed, room.raised, tallies.per_agent
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
        tally_magnitudes(magnitude(tau), changed[t], room, tallies.magnitudes[t])
    mean = moved / to_float(maximum(number, fill_u32(1)))
    small = word(fill_f32(asked.threshold) >= magnitude(mean))
    for t in range(changed.size):
        per_agent[0, t] += population(changed[t])
        per_agent[1, t] += population(changed[t] & ~many)
        per_agent[2, t] += population(changed[t] & many)
        per_agent[3, t] += population(changed[t] & up & down)
        per_agent[4, t] += population(changed[t] & many & small)
    add_energies(asked.pairs, rows, changed, many, mean, i, places)
    tally_lost(base + total * asked.share, base, changed, many, tallies.lost[0])
    tally_lost(select(mask(some & ~many), value, base + mean), base, changed, many, tallies.lost[1])
    if some & ~many:
        tally_survived(base, own, value, changed, many, asked.multipliers, tallies.survived)


@compiled(types.void(SOURCES, types.int64, _ASKED, _LEAVES, _ROOM, _TALLIES, SUMS))
def count(sources: Sources, elements: int, asked: Asked, where: Leaves, room: Room, tallies: Tallies, to: Sums) -> None:
    """Add to every count, over the sampled leaves of the elements."""
    agents, rows = len(tallies.steps), room.scratch.rows
    changed, raised = room.scratch.changed, room.raised
    for first in range(0, elements, LEAF):
        last = min(first + LEAF, elements)
        if ((where.first + first // LEAF) * MIX + where.key) & 0xFFFFFFFF >= where.below:
            continue
        for i in range(first, last, LANES):
            base = decode(sources.addresses[0], sources.codes[0], i)
            keys = bits_of(base) << 1 >> 24
            some = many = np.uint64(0)
            for t in range(agents):
                tau = decode(sources.addresses[t + 1], sources.codes[t + 1], i) - base
                store(rows[t], tau)
                by = magnitude(tau) > asked.threshold
                changed[t], raised[t] = word(by), word(tau > 0.0)
                keys = select(by, keys | 256 << t, keys)
                many |= some & changed[t]
                some |= changed[t]
                tally_steps(sources, t, i, changed[t], tallies.steps)
            tally_set(keys, room, tallies.table)
            if some:
                tally_pairs(asked.pairs, rows, changed, raised, tallies.per_pair)
                _tally_agents(
                    sources, i, base, (some, many), asked, room, tallies, to.places
                )  # fmt: skip
        finish_leaf(to, first // LEAF)
