"""methods/ram.py: the paper's RAM of the agents' own task vectors, in one round over the agents.

It has a loop of its own, as one round tells both who changed an element and what becomes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import signature
from agentmerge.kernels.cpu.loops.stages import added, finish
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    Lanes,
    fill_f32,
    fill_u8,
    magnitude,
    mask,
    ones,
    select,
    to_float,
    word,
)
from agentmerge.kernels.formulas import Ram

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Destination, Scratch, Sources
    from agentmerge.tensors import Array


@inlined
def _paper(sources: Sources, base: Lanes, i: int, settings: Ram, changed: Array) -> tuple[Lanes, Lanes, Any, Any]:
    """One round over the agents.

    Returns:
        the merged values, and what `stages.changes` returns.
    """
    threshold, scale, weight = settings.threshold, settings.scale, settings.weight
    summed, single, own, c = fill_f32(0.0), base, base, fill_u8(0)
    some, many = np.uint64(0), np.uint64(0)
    for t in range(changed.size):
        agent = decode(sources.addresses[t + 1], sources.codes[t + 1], i)
        tau = agent - base
        by = magnitude(tau) > threshold
        if scale[t] == 1 and weight[t] == 1:
            update, result = tau, agent
        else:
            update = tau * weight[t]
            result = added(base, update * scale[t])
        summed = select(by, summed + update, summed)
        single, own = select(by, result, single), select(by, agent, own)
        c += ones(by)
        changed[t] = word(by)
        many |= some & changed[t]
        some |= changed[t]
    return select(mask(many), added(base, summed / to_float(c)), single), own, some, many


@compiled(signature(Ram))
def merge(
    sources: Sources, scratch: Scratch, elements: int, settings: Ram, to: Destination, tally: Array, broken: Array
) -> None:
    """See the template in merge.py; task vectors need no memory."""
    changed = scratch.changed
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        merged, own, some, many = _paper(sources, base, i, settings, changed)
        finish(base, own, merged, some, many, changed, i, to, tally, broken)
