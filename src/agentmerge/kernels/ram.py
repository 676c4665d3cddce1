"""RAM's merge of one vector of elements: the paper's in one round, and everything methods/ram.py adds to it.

Task vectors lie in memory as in rules.py. `own` holds the value of the last agent that changed each element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels.call import ELECT, IMPORTANCE
from agentmerge.kernels.floats import decode
from agentmerge.kernels.rules import sign_of
from agentmerge.kernels.vectors import (
    Lanes,
    fill_f32,
    fill_u8,
    inlined,
    load_f32,
    magnitude,
    mask,
    maximum,
    ones,
    select,
    to_float,
    word,
)

if TYPE_CHECKING:
    from agentmerge.tensors import Array


@inlined
def paper(
    base: Lanes,
    addresses: Array,
    codes: Array,
    i: int,
    threshold: float,
    scale: Array,
    weight: Array,
    changed: Array,
) -> tuple[Lanes, Lanes, Any, Any]:
    """The paper's RAM of the agents' own task vectors, in one round over the agents.

    Returns:
        the merged values, the value of the last agent that changed each element, and as mask words what at least one
        and what at least two changed. changed[t] is agent t's mask word.
    """
    summed, single, own, c = fill_f32(0.0), base, base, fill_u8(0)
    some, many = np.uint64(0), np.uint64(0)
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
def _mean(total: Lanes, count: Lanes, power: float, table: Array) -> Lanes:
    """Total / count^power, a count of 0 taken as 1; table[k] is k^power."""
    if power == 0:
        return total
    if power == 1:
        return total / to_float(maximum(count, fill_u8(1)))
    divisor = fill_f32(1.0)
    for k in range(2, table.size):
        divisor = select(count == k, fill_f32(table[k]), divisor)
    return total / divisor


@inlined
def shared_update(
    rows: Array,
    offset: int,
    extra: Array,
    codes: Array,
    i: int,
    threshold: float,
    weight: Array,
    shared: int,
    power: float,
    table: Array,
) -> Lanes:
    """methods.shared.shared_update."""
    total, divisor, important, count = fill_f32(0.0), fill_f32(0.0), fill_f32(0.0), fill_u8(0)
    for t in range(rows.size):
        tau = load_f32(rows[t] + offset)
        by, update = magnitude(tau) > threshold, tau * weight[t]
        total = select(by, total + update, total)
        count += ones(by)
        if shared == IMPORTANCE:
            importance = decode(extra[t], codes[t], i)
            divisor = select(by, divisor + importance, divisor)
            important = select(by, important + importance * update, important)
    if shared == IMPORTANCE:
        return select(divisor == 0.0, _mean(total, count, 1.0, table), important / divisor)
    if shared == ELECT:
        sign, total, count = sign_of(total), fill_f32(0.0), fill_u8(0)
        for t in range(rows.size):
            tau = load_f32(rows[t] + offset)
            update = tau * weight[t]
            by = (magnitude(tau) > threshold) & (update * sign > 0.0)
            total = select(by, total + update, total)
            count += ones(by)
    return _mean(total, count, power, table)


@inlined
def fields(
    rows: Array,
    offset: int,
    given: bool,
    base: Lanes,
    own: Lanes,
    shared: Lanes,
    threshold: float,
    scale: Array,
    weight: Array,
) -> Lanes:
    """The merged elements of any RAM; `given`: the task vectors are not the agents' own, so neither is `own`."""
    single, count = base, fill_u8(0)
    for t in range(rows.size):
        tau = load_f32(rows[t] + offset)
        by = magnitude(tau) > threshold
        if scale[t] != 1 or weight[t] != 1:
            value = tau * weight[t] * scale[t] + base
        elif given:
            value = tau + base
        else:
            value = own
        single = select(by, value, single)
        count += ones(by)
    return select(count == 0, base, select(count == 1, single, base + shared))
