"""Elements that are legally not finite, such as a mask's -inf: the same bits in every source, so copied and not merged.

A method sees 0 in their place, in the base and in every agent, so that no sum is spoilt; the output gets the base's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.survey.common import Common, same_non_finite
from agentmerge.tensors import Block, as_float32, float32_bits

if TYPE_CHECKING:
    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.plan import Job, Plan
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Cast, Stack


def set_apart(job: Job, stack: Stack, seen: Answers, survey: Survey) -> Array | None:
    """Which elements of a stack are not to be merged, bool [n]; None where there are none, as nearly always.

    Args:
        job: whose stack.
        stack: as read.
        seen: what was answered of it.
        survey: earlier answers, which tell whether it is worth looking at all.
    """
    if job.method is None:
        return None
    asked = Common()
    found = seen.get(asked) or (survey.total(asked) if survey.knows(asked) else (0, 0))
    return same_non_finite(stack) if any(found) else None


def without(stack: Stack, apart: Array) -> Stack:
    """The stack with 0 in place of some elements, as if no agent had changed them.

    Args:
        stack: as read.
        apart: bool [n].
    """
    base, *agents = (zeroed(array, apart) for array in (stack.base, *stack.agents))
    stored = tuple(zeroed(array, apart) for array in stack.stored)
    return replace(stack, base=base, agents=tuple(agents), stored=stored)


def put_back(stored: Array, read: Array, apart: Array, cast: Cast, tensor: str) -> None:
    """Write the own elements of the base, or of what the merge is put onto, into what was merged without them.

    Args:
        stored: [n] in the output dtype; changed.
        read: [n], whose elements.
        apart: bool [n].
        cast: to the output dtype.
        tensor: its name.
    """
    own = read[apart]
    with np.errstate(all="ignore"):
        stored[apart] = own if own.dtype == stored.dtype else cast.apply(as_float32(own), tensor, 0)


def spoilt(plan: Plan, job: Job, block: Block, values: Array) -> Array:
    """The elements of a copied block that make the output worthless, bool [n]: NaN and inf that were not there before.

    inf is legal where the base has the same, and NaN where every source has: then no training brought them.

    Args:
        plan: the sources.
        job: a copy.
        block: of its tensor.
        values: [n], the block of the source that is copied.
    """
    with np.errstate(all="ignore"):
        bad: Array = ~np.isfinite(as_float32(values))
    if not bad.any():
        return bad
    base, *agents = (float32_bits(array) for array in _everywhere(plan, job, block))
    mine = float32_bits(values)
    of_base = mine == base
    of_all = np.logical_and.reduce([of_base, *(mine == agent for agent in agents)])
    with np.errstate(all="ignore"):
        bad &= ~np.where(np.isinf(as_float32(values)), of_base, of_all & bool(agents))
    return bad


def _everywhere(plan: Plan, job: Job, block: Block) -> list[Array]:
    """The block of the base, and of every agent that has it in the base's shape."""
    sources = (plan.family.base, *plan.family.agents.values())
    specs = [(source, source.specs.get(job.tensor.name)) for source in sources]
    return [
        source.weights.read(Block(spec, block.start, block.stop))
        for source, spec in specs
        if spec is not None and spec.shape == job.tensor.shape
    ]


def zeroed(array: Array, apart: Array) -> Array:
    """A copy with 0 in place of some elements."""
    copy = array.copy()
    copy[apart] = 0
    return copy
