"""The compiled loop of a map, for every rule of rule.py: merge, cast, observe. Importing it compiles or loads it.

Arrays come as in counting.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels import rules
from agentmerge.kernels.floats import decode
from agentmerge.kernels.merging import TARGET, _fold, finish
from agentmerge.kernels.rule import FISHER, GIVEN, LINEAR, PAPER, REGION, STRETCHED, TIES, Rule, Target
from agentmerge.kernels.vectors import LANES, Lanes, compiled, inlined, load_f32, magnitude, select, store, word

if TYPE_CHECKING:
    from agentmerge.tensors import Array

_INTS, _FLOATS = types.int64[::1], types.float32[::1]
_RULE = types.NamedTuple([types.int64] * 3 + [types.float32] * 6 + [_FLOATS] * 3, Rule)


@inlined
def _changes(
    addresses: Array, codes: Array, taus: Array, base: Lanes, i: int, threshold: float, rows: Array, changed: Array
) -> tuple[Lanes, Any, Any]:
    """One round over the agents: who changed what, and their task vectors into the rows unless these are `taus`.

    Returns:
        the value of the last agent that changed each element, and as mask words what at least one and what at least
        two changed. changed[t] is agent t's mask word.
    """
    own, some, many = base, np.uint64(0), np.uint64(0)
    for t in range(changed.size):
        agent = decode(addresses[t + 1], codes[t + 1], i)
        tau = agent - base
        by = magnitude(tau) > threshold
        own = select(by, agent, own)
        changed[t] = word(by)
        many |= some & changed[t]
        some |= changed[t]
        if taus.size == 0:
            store(rows[t], tau)
    return own, some, many


@compiled(types.void(_INTS, _INTS, _INTS, _INTS, _INTS, _INTS, types.int64, _RULE, TARGET, types.int64[:, ::1], _INTS))
def merge(
    addresses: Array,
    codes: Array,
    taus: Array,
    extra: Array,
    extra_codes: Array,
    scratch: Array,
    elements: int,
    rule: Rule,
    target: Target,
    tally: Array,
    broken: Array,
) -> None:
    """Merge, round, store and observe.

    Args:
        addresses, codes: of the base and the agents.
        taus: addresses of the task vectors that a wrapping method made, float32; none: they are the agents' own.
        extra, extra_codes: of the importance, or of what is GIVEN or STRETCHED.
        scratch: addresses of room for a vector of each agent.
        elements: a multiple of LANES.
        rule, target: see rule.py.
        tally, broken: see merging.finish.
    """
    changed = np.zeros(scratch.size, np.uint64)
    threshold, weight, limit, scale = rule.threshold, rule.weight, rule.limit, rule.scale
    given = taus.size > 0
    rows = taus if given else scratch
    for i in range(0, elements, LANES):
        base = decode(addresses[0], codes[0], i)
        if rule.code == PAPER:
            merged, own, some, many = _fold(base, addresses, codes, i, threshold, limit, weight, changed)
            finish(base, own, merged, some, many, changed, i, target, tally, broken)
            continue
        own, some, many = _changes(addresses, codes, taus, base, i, threshold, rows, changed)
        at = 4 * i if given else 0
        if rule.code == GIVEN:
            merged = load_f32(extra[0] + 4 * i)
        elif rule.code == STRETCHED:
            merged = rules.added(base, (load_f32(extra[0] + 4 * i) - base) * scale)
        elif rule.code == LINEAR:
            merged = rules.added(base, rules.linear(rows, at, weight, scale, rule.divisor))
        elif rule.code == TIES:
            merged = rules.added(base, rules.ties(rows, at, weight, limit, rule.zero, scale))
        elif rule.code == FISHER:
            merged = rules.added(base, rules.fisher(rows, at, extra, extra_codes, i, weight, rule.floor, scale))
        elif rule.code == REGION:
            value = load_f32(rows[rule.agent] + at) * scale + base
            if scale == 1 and not given:
                value = decode(addresses[rule.agent + 1], codes[rule.agent + 1], i)
            merged = rules.region(rows, at, base, value, threshold, rule.agent, rule.choice)
        else:
            shared = rules.shared_update(
                rows, at, extra, extra_codes, i, threshold, weight, rule.choice, rule.power, rule.table
            )
            merged = rules.ram(rows, at, given, base, own, shared, threshold, limit, weight)
        finish(base, own, merged, some, many, changed, i, target, tally, broken)
