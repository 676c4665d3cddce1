"""The compiled loop of a map: RAM's merge, the cast and what the cast did. Importing it compiles or loads it.

Arrays come as in counting.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.floats import INFINITY, decode, encode, random_lanes, round_to
from agentmerge.kernels.rule import Target
from agentmerge.kernels.vectors import (
    LANES,
    Lanes,
    compiled,
    fill_f32,
    fill_u8,
    fill_u32,
    inlined,
    magnitude,
    mask,
    ones,
    population,
    select,
    to_float,
    word,
)

if TYPE_CHECKING:
    from agentmerge.tensors import Array

_INTS, _FLOATS = types.int64[::1], types.float32[::1]
TARGET = types.NamedTuple([types.int64] * 2 + [types.boolean] * 2 + [types.int64] * 3, Target)

_NOBODY, _EVERY = np.uint64(0), np.uint64(2**LANES - 1)


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
) -> tuple[Lanes, Lanes, Any, Any]:
    """One round over the agents, in their order.

    Returns:
        the merged values, the value of the last agent that changed each element, and as mask words what at least one
        and what at least two changed. changed[t] is agent t's mask word.
    """
    summed, single, own, c = fill_f32(0.0), base, base, fill_u8(0)
    some, many = _NOBODY, _NOBODY
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
    return select(mask(many), base + summed / to_float(c), single), own, some, many


@inlined
def _observe(changed: Array, lost: Any, unique: Any, survived: Any, tally: Array) -> None:
    """Add mask words to tally [4, agents]: changed, lost, unique, survived."""
    for t in range(changed.size):
        tally[0, t] += population(changed[t])
        tally[1, t] += population(changed[t] & lost)
        tally[2, t] += population(changed[t] & unique)
        tally[3, t] += population(changed[t] & unique & survived)


@inlined
def _observe_broken(merged: Lanes, result: Lanes, broken: Array) -> None:
    """Add to broken [2]: finite results stored as inf, and results that are not finite. Rare, so one test first."""
    finite = word(magnitude(result) < INFINITY)
    if finite != _EVERY:
        whole = word(magnitude(merged) < INFINITY)
        broken[0] += population(whole & ~finite)
        broken[1] += population(_EVERY & ~whole)


@inlined
def finish(
    base: Lanes,
    own: Lanes,
    merged: Lanes,
    some: Any,
    many: Any,
    changed: Array,
    i: int,
    target: Target,
    tally: Array,
    broken: Array,
) -> None:
    """Round, store and observe a vector; `own`, `some`, `many` and `changed` as of `_fold`."""
    random = fill_u32(0)
    if target.draw:
        random = random_lanes(target.key0, target.key1, target.start + i)
    result = round_to(merged, target.code, target.draw, random)
    encode(result, target.address, target.code, i)
    moved = word(merged != base)
    if not target.exact:
        base, own = round_to(base, target.code, target.draw, random), round_to(own, target.code, target.draw, random)
    _observe(changed, moved & word(result == base), some & ~many, word(result != own), tally)
    _observe_broken(merged, result, broken)


@compiled(types.void(_INTS, _INTS, types.int64, types.float32, _FLOATS, _FLOATS, TARGET, types.int64[:, ::1], _INTS))
def ram(
    addresses: Array,
    codes: Array,
    elements: int,
    threshold: float,
    scale: Array,
    weight: Array,
    target: Target,
    tally: Array,
    broken: Array,
) -> None:
    """Merge, round, store and observe."""
    changed = np.zeros(scale.size, np.uint64)
    for i in range(0, elements, LANES):
        base = decode(addresses[0], codes[0], i)
        merged, own, some, many = _fold(base, addresses, codes, i, threshold, scale, weight, changed)
        finish(base, own, merged, some, many, changed, i, target, tally, broken)
