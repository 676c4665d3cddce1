"""What every compiled map does around its formula: who changed what, the cast, and what the cast did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import INFINITY, decode, encode, random_lanes, round_to
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    Lanes,
    fill_f32,
    fill_u32,
    load_f32,
    magnitude,
    population,
    select,
    store,
    word,
)

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Destination, Sources
    from agentmerge.tensors import Array

_EVERY = np.uint64(2**LANES - 1)


@inlined
def added(base: Lanes, update: Lanes) -> Lanes:
    """methods.base.added."""
    return select(update == 0.0, base, base + update)


@inlined
def sign_of(x: Lanes) -> Lanes:
    """-1, 0 or 1, and NaN of NaN."""
    return select(x > 0.0, fill_f32(1.0), select(x < 0.0, fill_f32(-1.0), x))


@inlined
def task_vector(sources: Sources, base: Lanes, t: int, i: int) -> Lanes:
    """An agent's task vector of the elements [i, i + LANES): the given one, or its own."""
    if sources.taus.size:
        return load_f32(sources.taus[t] + 4 * i)
    return decode(sources.addresses[t + 1], sources.codes[t + 1], i) - base


@inlined
def task_vectors(sources: Sources, base: Lanes, i: int, scratch: Array) -> None:
    """The agents' own task vectors of the elements [i, i + LANES) into their rows of scratch."""
    for t in range(scratch.size):
        store(scratch[t], decode(sources.addresses[t + 1], sources.codes[t + 1], i) - base)


@inlined
def changes(
    sources: Sources, base: Lanes, i: int, threshold: float, scratch: Array, changed: Array
) -> tuple[Lanes, Any, Any]:
    """One round over the agents; their task vectors go into scratch.

    Returns:
        the value of the last agent that changed each element, and as mask words what at least one and what at least
        two changed. changed[t] is agent t's mask word.
    """
    own, some, many = base, np.uint64(0), np.uint64(0)
    for t in range(changed.size):
        agent = decode(sources.addresses[t + 1], sources.codes[t + 1], i)
        tau = agent - base
        store(scratch[t], tau)
        by = magnitude(tau) > threshold
        own = select(by, agent, own)
        changed[t] = word(by)
        many |= some & changed[t]
        some |= changed[t]
    return own, some, many


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
    to: Destination,
    tally: Array,
    broken: Array,
) -> None:
    """Round, store and observe a vector; `own`, `some`, `many` and `changed` as of `changes`."""
    random = fill_u32(0)
    if to.draw:
        random = random_lanes(to.key0, to.key1, to.start + i)
    result = round_to(merged, to.code, to.draw, random)
    encode(result, to.address, to.code, i)
    moved = word(merged != base)
    if not to.exact:
        base, own = round_to(base, to.code, to.draw, random), round_to(own, to.code, to.draw, random)
    _observe(changed, moved & word(result == base), some & ~many, word(result != own), tally)
    _observe_broken(merged, result, broken)
