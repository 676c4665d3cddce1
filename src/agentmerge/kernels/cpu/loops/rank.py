"""The compiled folds of TIES: histograms of magnitudes, and elected signs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.arguments import LOW_BITS
from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.formulas.ties import elected
from agentmerge.kernels.cpu.loops.signatures import COUNTS, FLOATS, INTS, KEYS, SCRATCH, SOURCES
from agentmerge.kernels.cpu.loops.stages import task_vector, task_vectors
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    Lanes,
    bits_of,
    lowest,
    population,
    store,
    word,
)

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Scratch, Sources
    from agentmerge.tensors import Array

_ONE, _EVERY = np.uint64(1), np.uint64(2**LANES - 1)


@inlined
def _magnitude_bits(sources: Sources, base: Lanes, t: int, i: int) -> Lanes:
    """The 31 bits of |tau| of one agent."""
    return bits_of(task_vector(sources, base, t, i)) & 0x7FFFFFFF


@inlined
def _tally(keys: Lanes, which: Any, room: Array, address: int, counts: Array, t: int) -> None:
    """Add the lanes of the mask word to counts[t, key]; most keys are 0 and counted all at once."""
    zero = which & word(keys == 0)
    counts[t, 0] += population(zero)
    which &= ~zero
    store(address, keys)
    while which:
        counts[t, room[lowest(which)]] += 1
        which &= which - _ONE


@compiled(types.void(SOURCES, types.int64, KEYS, types.int64, COUNTS))
def high(sources: Sources, elements: int, room: Array, address: int, counts: Array) -> None:
    """survey.MagnitudeHigh: add to counts [agents, 2^16]; `room`, at `address`, holds a vector."""
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        for t in range(len(counts)):
            _tally(_magnitude_bits(sources, base, t, i) >> LOW_BITS, _EVERY, room, address, counts, t)


@compiled(types.void(SOURCES, types.int64, KEYS, types.int64, INTS, COUNTS))
def low(sources: Sources, elements: int, room: Array, address: int, bins: Array, counts: Array) -> None:
    """survey.MagnitudeLow: add to counts [agents, 2^15] the magnitudes in each agent's bin, -1 for none."""
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        for t in range(len(counts)):
            bits = _magnitude_bits(sources, base, t, i)
            inside = word(bits >> LOW_BITS == bins[t])
            _tally(bits & (1 << LOW_BITS) - 1, inside, room, address, counts, t)


@compiled(types.void(SOURCES, SCRATCH, types.int64, FLOATS, FLOATS, INTS))
def signs(sources: Sources, scratch: Scratch, elements: int, weight: Array, limit: Array, counts: Array) -> None:
    """methods.ties.ElectedSigns: add to counts [2] how many elements elected + and how many -."""
    given = sources.taus.size > 0
    rows = sources.taus if given else scratch.rows
    for i in range(0, elements, LANES):
        if not given:
            task_vectors(sources, decode(sources.addresses[0], sources.codes[0], i), i, scratch.rows)
        sign = elected(rows, 4 * i if given else 0, weight, limit)
        counts[0] += population(word(sign > 0.0))
        counts[1] += population(word(sign < 0.0))
