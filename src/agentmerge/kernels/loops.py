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

from agentmerge.kernels.floats import F32, INF, decode, encode, random_lanes, round_to
from agentmerge.kernels.vectors import (
    LANES,
    Lanes,
    bits_of,
    fill_f32,
    fill_u8,
    fill_u32,
    fill_u64,
    inlined,
    largest,
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
_INFINITY = float("inf")
_NOTHING, _EVERY = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
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
def _fingerprint(address: int, size: int, key: int, first: int) -> int:
    """sum of word * factor mod 2^64 over `size` bytes, as survey.integrity; even and odd words of 64 bits apart."""
    even = steps_u64(0) * (2 * MIX) + (first + 1) * MIX
    result = fill_u64(0)
    for offset in range(0, size, 128):
        words = load_u64(address + offset)
        result += (words & _LOW) * ((even & _LOW ^ key) | 1)
        result += (words >> 32) * ((even + MIX & _LOW ^ key) | 1)
        even += 32 * MIX
    return total(result)


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
        size = 4 if codes[a] == F32 else 2
        fingerprint[a] += _fingerprint(addresses[a], elements * size, key, start * size >> 2)
        found = _non_finite(addresses[a], codes[a], 0, elements)
        nan[a] += found[0]
        inf[a] += found[1]


@inlined
def _changes(base: Lanes, agent: Lanes, threshold: float) -> tuple[Lanes, int, int]:
    """|tau| as bits, who changed as a mask word, how many elements differ."""
    size = magnitude(agent - base)
    return bits_of(size), word(size > threshold), population(word(bits_of(agent) != bits_of(base)))


@inlined
def _tally(changed: Array, at_least: Array, exactly: Array) -> None:
    """Add 64 elements to exactly[t, k - 1]; changed[t] and at_least[k] are mask words."""
    agents = changed.size
    for k in range(agents):
        only = at_least[k + 1] & ~at_least[k + 2]
        for t in range(agents):
            exactly[t, k] += population(changed[t] & only)


@inlined
def _overlap(
    addresses: Array,
    codes: Array,
    start: int,
    stop: int,
    threshold: float,
    changed: Array,
    at_least: Array,
    exactly: Array,
    different: Array,
) -> int:
    """Count elements [start, stop); the largest |tau| as bits: >= INF means that something is not finite."""
    worst = fill_u32(0)
    for i in range(start, stop, LANES):
        base = decode(addresses[0], codes[0], i)
        for k in range(1, at_least.size):
            at_least[k] = _NOTHING
        for t in range(different.size):
            size, bits, differing = _changes(base, decode(addresses[t + 1], codes[t + 1], i), threshold)
            worst = maximum(worst, size)
            different[t] += differing
            changed[t] = bits
            for k in range(t + 1, 0, -1):
                at_least[k] |= at_least[k - 1] & bits
        _tally(changed, at_least, exactly)
    return largest(worst)


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
    changed, at_least = np.zeros(agents, np.uint64), np.zeros(agents + 2, np.uint64)
    at_least[0] = _EVERY
    for first in range(0, elements, LEAF):
        last = min(first + LEAF, elements)
        for a in range(agents + 1):
            size = 4 if codes[a] == F32 else 2
            at = (start + first) * size >> 2
            fingerprint[a] += _fingerprint(addresses[a] + first * size, (last - first) * size, key, at)
        worst = _overlap(addresses, codes, first, last, threshold, changed, at_least, exactly, different)
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
        update = tau * weight[t]
        by = magnitude(tau) > threshold
        plain = scale[t] == 1 and weight[t] == 1
        result = agent if plain else update * scale[t] + base
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
