"""The compiled loops: tally, integrity and ram over raw addresses; importing this file compiles or loads them.

One compiled function serves any number of agents and any mix of dtypes: arrays come as addresses and dtype codes, the
base first. All work on whole vectors of 64 elements; cpu.py pads what is left over.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numba import njit

from agentmerge.kernels.floats import BF16, F32, INF, decode, encode, random_lanes, round_to
from agentmerge.kernels.vectors import (
    LANES,
    Lanes,
    bits_of,
    fill_f32,
    fill_u8,
    fill_u16,
    fill_u32,
    fill_u64,
    inlined,
    largest,
    load_f32,
    load_u16,
    load_u64,
    magnitude,
    mask,
    maximum,
    ones,
    population,
    select,
    steps_u64,
    to_float,
    total,
    word,
)
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentmerge.tensors import Array

    F = TypeVar("F", bound=Callable[..., Any])

MIX = 0x9E3779B1
_LOW = 0xFFFFFFFF
_WORDS = LEAF // LANES
_INFINITY = float("inf")
_NOTHING, _EVERY = np.uint64(0), np.uint64(2**LANES - 1)
_SOURCES = sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


def _compiled(*signatures: str) -> Callable[[F], F]:
    """Compile now, or load from numba's cache; without a cache where no folder can be written.

    numba's cache looks only at the function's own file, so the name carries a digest of every kernel file.
    """

    def compiled(function: F) -> F:
        function.__qualname__ = f"{function.__name__}_{_SOURCES[:12]}"
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return cast("F", njit(list(signatures), cache=True, **options)(function))
        except (RuntimeError, OSError):
            return cast("F", njit(list(signatures), **options)(function))

    return compiled


@inlined
def _fingerprint(address: int, code: int, first: int, last: int, key: int, start: int) -> int:
    """sum of word * factor mod 2^64 over the elements [first, last), as survey.integrity.

    A vector holds 16 pairs of words: an even one below, an odd one above.
    """
    size = 4 if code == F32 else 2
    even = (steps_u64(0) * 2 + (((start + first) * size >> 2) + 1)) * MIX
    result = fill_u64(0)
    for offset in range(first * size, last * size, 2 * LANES):
        pair = load_u64(address + offset)
        result += (pair & _LOW) * (((even ^ key) | 1) & _LOW)
        result += (pair >> 32) * (((even + MIX ^ key) | 1) & _LOW)
        even += (LANES // 2) * MIX
    return total(result)


@inlined
def _suspect(address: int, code: int, start: int, stop: int) -> bool:
    """Whether anything is NaN or inf: whether the largest pattern without its sign reaches inf."""
    if code == F32:
        wide = fill_u32(0)
        for i in range(start, stop, LANES):
            wide = maximum(wide, bits_of(load_f32(address + 4 * i)) & 0x7FFFFFFF)
        return largest(wide) >= INF
    worst = fill_u16(0)
    for i in range(start, stop, LANES):
        worst = maximum(worst, load_u16(address + 2 * i) & 0x7FFF)
    return largest(worst) >= (0x7F80 if code == BF16 else 0x7C00)


@inlined
def _non_finite(address: int, code: int, start: int, stop: int) -> tuple[int, int]:
    """How many elements are NaN, and how many are inf."""
    nan = inf = 0
    for i in range(start, stop, LANES):
        size = bits_of(magnitude(decode(address, code, i)))
        nan += population(word(size > INF))
        inf += population(word(size == INF))
    return nan, inf


@_compiled("void(int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1], uint64[::1])")
def integrity(
    addresses: Array, codes: Array, elements: int, key: int, start: int, nan: Array, inf: Array, fingerprint: Array
) -> None:
    """Count NaN and inf and fingerprint the bytes of every source, [1 + agents] each."""
    for a in range(addresses.size):
        address, code = addresses[a], codes[a]
        for first in range(0, elements, LEAF):
            last = min(first + LEAF, elements)
            fingerprint[a] += _fingerprint(address, code, first, last, key, start)
            if _suspect(address, code, first, last):
                found = _non_finite(address, code, first, last)
                nan[a] += found[0]
                inf[a] += found[1]


@inlined
def _overlap(
    addresses: Array,
    codes: Array,
    start: int,
    stop: int,
    threshold: float,
    changed: Array,
    different: Array,
) -> int:
    """Who changed the elements [start, stop), as the words changed[t, i // 64]; the largest |tau|, as bits.

    A largest |tau| of INF or more tells that something is not finite, or that a difference overflowed.
    """
    worst = fill_u32(0)
    for i in range(start, stop, LANES):
        base = decode(addresses[0], codes[0], i)
        for t in range(different.size):
            agent = decode(addresses[t + 1], codes[t + 1], i)
            size = magnitude(agent - base)
            worst = maximum(worst, bits_of(size))
            changed[t, (i - start) // LANES] = word(size > threshold)
            different[t] += population(word(bits_of(agent) != bits_of(base)))
    return largest(worst)


@inlined
def _tally(changed: Array, at_least: Array, exactly: Array) -> None:
    """Add a tile to exactly[t, k - 1]; at_least[k] are words too: changed by k or more of the agents so far."""
    agents, words = changed.shape
    for t in range(agents):
        for i in range(words):
            at_least[t + 1, i] = at_least[t, i] & changed[t, i]
        for k in range(t, 0, -1):
            for i in range(words):
                at_least[k, i] |= at_least[k - 1, i] & changed[t, i]
    for k in range(1, agents + 1):
        for t in range(agents):
            found = 0
            for i in range(words):
                found += population(changed[t, i] & at_least[k, i] & ~at_least[k + 1, i])
            exactly[t, k - 1] += found


@_compiled(
    "void(int64[::1], int64[::1], int64, float32, int64, int64,"
    " int64[:, ::1], int64[::1], int64[::1], int64[::1], uint64[::1])"
)
def count(
    addresses: Array,
    codes: Array,
    elements: int,
    threshold: float,
    key: int,
    start: int,
    exactly: Array,
    different: Array,
    nan: Array,
    inf: Array,
    fingerprint: Array,
) -> None:
    """Overlap and integrity in one pass over memory, tile by tile."""
    agents = different.size
    changed, at_least = np.zeros((agents, _WORDS), np.uint64), np.zeros((agents + 2, _WORDS), np.uint64)
    at_least[0] = _EVERY
    for first in range(0, elements, LEAF):
        last = min(first + LEAF, elements)
        for a in range(agents + 1):
            fingerprint[a] += _fingerprint(addresses[a], codes[a], first, last, key, start)
        changed[:, (last - first) // LANES :] = 0
        worst = _overlap(addresses, codes, first, last, threshold, changed, different)
        _tally(changed, at_least, exactly)
        if worst >= INF:
            for a in range(agents + 1):
                found = _non_finite(addresses[a], codes[a], first, last)
                nan[a] += found[0]
                inf[a] += found[1]


@inlined
def _fold(
    base: Lanes,
    addresses: Array,
    codes: Array,
    i: int,
    threshold: float,
    scale: Array,
    weight: Array,
    changed: Array,
) -> tuple[Lanes, Lanes, Lanes, Lanes, int, int]:
    """One pass over the agents: sum of updates, the last changer's result and value, c, who has c >= 1 and c >= 2."""
    summed, single, own, c = fill_f32(0.0), base, base, fill_u8(0)
    some, many = _NOTHING, _NOTHING
    for t in range(changed.size):
        agent = decode(addresses[t + 1], codes[t + 1], i)
        tau = agent - base
        by = magnitude(tau) > threshold
        if scale[t] == 1 and weight[t] == 1:
            update, result = tau, agent
        else:
            update = tau * weight[t]
            result = update * scale[t] + base
        summed = select(by, summed + update, summed)
        single, own = select(by, result, single), select(by, agent, own)
        c += ones(by)
        changed[t] = word(by)
        many |= some & changed[t]
        some |= changed[t]
    return summed, single, own, c, some, many


@_compiled(
    "void(int64[::1], int64[::1], int64, float32, float32[::1], float32[::1], int64, int64, boolean, boolean,"
    " int64, int64, int64, int64[:, ::1], int64[::1])"
)
def ram(
    addresses: Array,
    codes: Array,
    elements: int,
    threshold: float,
    scale: Array,
    weight: Array,
    out: int,
    code: int,
    exact: bool,
    draw: bool,
    key0: int,
    key1: int,
    start: int,
    tally: Array,
    broken: Array,
) -> None:
    """Merge, round, store at `out` and count: tally [4, agents], broken [2], as RoundingCounts."""
    agents = scale.size
    changed = np.zeros(agents, np.uint64)
    random = fill_u32(0)
    for i in range(0, elements, LANES):
        base = decode(addresses[0], codes[0], i)
        summed, single, own, c, some, many = _fold(base, addresses, codes, i, threshold, scale, weight, changed)
        merged = select(mask(many), base + summed / to_float(c), single)
        if draw:
            random = random_lanes(key0, key1, start + i)
        result = round_to(merged, code, draw, random)
        encode(result, out, code, i)
        lost = word(merged != base)
        if not exact:
            base, own = round_to(base, code, draw, random), round_to(own, code, draw, random)
        lost &= word(result == base)
        unique = some & ~many
        survived = unique & word(result != own)
        for t in range(agents):
            tally[0, t] += population(changed[t])
            tally[1, t] += population(changed[t] & lost)
            tally[2, t] += population(changed[t] & unique)
            tally[3, t] += population(changed[t] & survived)
        finite = word(magnitude(result) < _INFINITY)
        if finite != _EVERY:
            whole = word(magnitude(merged) < _INFINITY)
            broken[0] += population(whole & ~finite)
            broken[1] += population(~whole)
