"""The compiled loops of a fold: who changed what, NaN and inf, fingerprints.

One function serves any number of agents and any mix of dtypes: arrays come as addresses and dtype codes. All work on
whole vectors; arguments.py pads what is left over with zeros, which count as nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.arguments import BF16, F32
from agentmerge.kernels.cpu.fold import IntegrityTally, OverlapTally
from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import INF, LOW_WORD, decode
from agentmerge.kernels.cpu.loops.signatures import COUNTS, INTS, SOURCES, named
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    bits_of,
    fill_u16,
    fill_u32,
    fill_u64,
    largest,
    load_f32,
    load_u16,
    load_u64,
    magnitude,
    maximum,
    population,
    steps_u64,
    total,
    word,
)
from agentmerge.tensors import LEAF, MIX

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array

WORDS = LEAF // LANES
"""Mask words of a leaf."""
_OVERLAP = named(OverlapTally, [COUNTS, INTS, *[types.uint64[:, ::1]] * 2])
_INTEGRITY = named(IntegrityTally, [INTS, INTS, types.uint64[::1]])


@inlined
def _fingerprint(address: int, code: int, first: int, last: int, key: int, start: int) -> Any:
    """Fingerprint of the elements [first, last): sum of word * factor mod 2^64, as survey.integrity defines it.

    A 64-bit lane holds two words, of even index below and of odd index above.
    """
    size = 4 if code == F32 else 2
    even = (steps_u64(0) * 2 + (((start + first) * size >> 2) + 1)) * MIX
    result = fill_u64(0)
    for offset in range(first * size, last * size, 2 * LANES):
        pair = load_u64(address + offset)
        result += (pair & LOW_WORD) * (((even ^ key) | 1) & LOW_WORD)
        result += (pair >> 32) * (((even + MIX ^ key) | 1) & LOW_WORD)
        even += LANES // 2 * MIX
    return total(result)


@inlined
def _suspect(address: int, code: int, first: int, last: int) -> Any:
    """Whether anything is NaN or inf: whether the largest pattern without its sign reaches inf."""
    if code == F32:
        wide = fill_u32(0)
        for i in range(first, last, LANES):
            wide = maximum(wide, bits_of(load_f32(address + 4 * i)) & 0x7FFFFFFF)
        return largest(wide) >= INF
    worst = fill_u16(0)
    for i in range(first, last, LANES):
        worst = maximum(worst, load_u16(address + 2 * i) & 0x7FFF)
    return largest(worst) >= (0x7F80 if code == BF16 else 0x7C00)


@inlined
def _non_finite(address: int, code: int, first: int, last: int) -> tuple[int, int]:
    """How many elements are NaN, and how many are inf."""
    nan = inf = 0
    for i in range(first, last, LANES):
        size = bits_of(magnitude(decode(address, code, i)))
        nan += population(word(size > INF))
        inf += population(word(size == INF))
    return nan, inf


@inlined
def _add_non_finite(sources: Sources, a: int, first: int, last: int, to: IntegrityTally) -> None:
    found = _non_finite(sources.addresses[a], sources.codes[a], first, last)
    to.nan[a] += found[0]
    to.inf[a] += found[1]


@compiled(types.void(SOURCES, types.int64, types.int64, types.int64, _INTEGRITY))
def integrity(sources: Sources, elements: int, key: int, start: int, to: IntegrityTally) -> None:
    """Add to the counts of NaN and inf and to the fingerprint of every source."""
    for a in range(to.fingerprint.size):
        address, code = sources.addresses[a], sources.codes[a]
        for first in range(0, elements, LEAF):
            last = min(first + LEAF, elements)
            to.fingerprint[a] += _fingerprint(address, code, first, last, key, start)
            if _suspect(address, code, first, last):
                _add_non_finite(sources, a, first, last, to)


@inlined
def _changes(sources: Sources, first: int, last: int, threshold: float, changed: Array, different: Array) -> Any:
    """Who changed the elements [first, last), as the mask words changed[t, i // LANES]; the largest |tau|, as bits.

    INF or more tells that an input is not finite, or that a difference overflowed.
    """
    addresses, codes, taus = sources.addresses, sources.codes, sources.taus
    worst = fill_u32(0)
    for i in range(first, last, LANES):
        base = decode(addresses[0], codes[0], i)
        for t in range(different.size):
            agent = decode(addresses[t + 1], codes[t + 1], i)
            size = magnitude(load_f32(taus[t] + 4 * i) if taus.size else agent - base)
            worst = maximum(worst, bits_of(size))
            changed[t, (i - first) // LANES] = word(size > threshold)
            different[t] += population(word(bits_of(agent) != bits_of(base)))
    return largest(worst)


@inlined
def _tally(changed: Array, at_least: Array, exactly: Array) -> None:
    """Add a tile to exactly[t, k - 1]; at_least[k] are mask words too: changed by k or more of the agents so far.

    `most` agents at most changed an element of the tile, so that many sparse agents take no square of their number.
    """
    agents, words = changed.shape
    most = 0
    for t in range(agents):
        for i in range(words):
            at_least[t + 1, i] = 0
        more = np.uint64(0)
        for i in range(words):
            found = at_least[most, i] & changed[t, i]
            at_least[most + 1, i] = found
            more |= found
        for k in range(most, 0, -1):
            for i in range(words):
                at_least[k, i] |= at_least[k - 1, i] & changed[t, i]
        most += more != 0
    for k in range(1, most + 1):
        only = np.uint64(0)
        for i in range(words):
            only |= at_least[k, i] & ~at_least[k + 1, i]
        if only == 0:
            continue
        for t in range(agents):
            found = 0
            for i in range(words):
                found += population(changed[t, i] & at_least[k, i] & ~at_least[k + 1, i])
            exactly[t, k - 1] += found


@compiled(types.void(SOURCES, types.int64, types.float32, types.int64, types.int64, _OVERLAP, _INTEGRITY))
def count(
    sources: Sources,
    elements: int,
    threshold: float,
    key: int,
    start: int,
    overlap: OverlapTally,
    integrity: IntegrityTally,
) -> None:
    """Overlap and integrity in one pass over memory: tile by tile, each read again from the cache.

    Of task vectors that a wrapping method made, integrity must not be asked for.
    """
    changed, fingerprint = overlap.changed, integrity.fingerprint
    for first in range(0, elements, LEAF):
        last = min(first + LEAF, elements)
        for a in range(fingerprint.size):
            fingerprint[a] += _fingerprint(sources.addresses[a], sources.codes[a], first, last, key, start)
        changed[:, (last - first) // LANES :] = 0
        worst = _changes(sources, first, last, threshold, changed, overlap.different)
        _tally(changed, overlap.at_least, overlap.exactly)
        if worst >= INF:
            for a in range(fingerprint.size):
                _add_non_finite(sources, a, first, last, integrity)
