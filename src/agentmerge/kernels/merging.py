"""The compiled loop of a map, for every rule: merge, cast, observe. Importing it compiles or loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import types

from agentmerge.kernels import ram, rules
from agentmerge.kernels.call import FISHER, GIVEN, LINEAR, RAM, RAM_FIELDS, REGION, TIES, Destination, Rule
from agentmerge.kernels.floats import decode
from agentmerge.kernels.stages import changes, finish
from agentmerge.kernels.vectors import FLOATS, INTS, LANES, SOURCES, compiled, load_f32, named

if TYPE_CHECKING:
    from agentmerge.kernels.call import Sources
    from agentmerge.tensors import Array

_RULE = named(Rule, [types.int64] * 3 + [types.float32] * 6 + [FLOATS] * 3)
_DESTINATION = named(Destination, [types.int64] * 2 + [types.boolean] * 2 + [types.int64] * 3)


@compiled(types.void(SOURCES, INTS, types.int64, _RULE, _DESTINATION, types.int64[:, ::1], INTS))
def merge(
    sources: Sources, scratch: Array, elements: int, rule: Rule, to: Destination, tally: Array, broken: Array
) -> None:
    """Merge, round, store and observe.

    Args:
        sources: what is read.
        scratch: addresses of room for a vector of each agent.
        elements: a multiple of LANES.
        rule: what is done.
        to: where it goes.
        tally: int64 [4, agents], added to; see stages.py.
        broken: int64 [2], added to; see stages.py.
    """
    addresses, codes, taus, extra, extra_codes = sources
    threshold, scale, weight, limit = rule.threshold, rule.scale, rule.weight, rule.limit
    changed = np.zeros(scratch.size, np.uint64)
    given = taus.size > 0
    rows = taus if given else scratch
    for i in range(0, elements, LANES):
        base = decode(addresses[0], codes[0], i)
        if rule.code == RAM:
            merged, own, some, many = ram.paper(base, addresses, codes, i, threshold, limit, weight, changed)
        else:
            own, some, many = changes(sources, base, i, threshold, scratch, changed)
            at = 4 * i if given else 0
            if rule.code == RAM_FIELDS:
                shared = ram.shared_update(
                    rows, at, extra, extra_codes, i, threshold, weight, rule.choice, rule.power, rule.table
                )
                merged = ram.fields(rows, at, given, base, own, shared, threshold, limit, weight)
            elif rule.code == REGION:
                value = load_f32(rows[rule.agent] + at) * scale + base
                if scale == 1 and not given:
                    value = decode(addresses[rule.agent + 1], codes[rule.agent + 1], i)
                merged = rules.region(rows, at, base, value, threshold, rule.agent, rule.choice)
            elif rule.code == GIVEN:
                merged = decode(extra[0], extra_codes[0], i)
            else:
                if rule.code == LINEAR:
                    update = rules.linear(rows, at, weight, scale, rule.divisor)
                elif rule.code == TIES:
                    update = rules.ties(rows, at, weight, limit, rule.zero, scale)
                elif rule.code == FISHER:
                    update = rules.fisher(rows, at, extra, extra_codes, i, weight, rule.floor, scale)
                else:
                    update = (decode(extra[0], extra_codes[0], i) - base) * scale
                merged = rules.added(base, update)
        finish(base, own, merged, some, many, changed, i, to, tally, broken)
