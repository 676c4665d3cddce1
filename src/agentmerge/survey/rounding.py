"""What the output cast did to the merge: changes lost, rescales survived, overflow. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agentmerge.survey.answers import Answers, Counts, CountsOf
from agentmerge.survey.overlap import THRESHOLD, changed_mask
from agentmerge.survey.statistic import AfterStatistic
from agentmerge.tensors import Array, Cast, Stack, as_float32


@dataclass(frozen=True, slots=True, eq=False)
class RoundingCounts(Counts):
    """Exact counts over the merged elements."""

    changed: Array
    """int64 [agents]: elements the agent changed."""
    lost: Array
    """int64 [agents]: of those, where merged != base in float32 but the stored number is the stored base's."""
    unique: Array
    """int64 [agents]: elements only this agent changed."""
    survived: Array
    """int64 [agents]: of those, where the stored number is not what the agent's own value would be stored as."""
    overflow: int
    """finite float32 results that were stored as inf."""
    non_finite: int
    """float32 results that are NaN or inf."""

    @classmethod
    def zero(cls, agents: int) -> RoundingCounts:
        """Nothing counted yet."""
        changed, lost, unique, survived = np.zeros((4, agents), np.int64)
        return cls(changed, lost, unique, survived, 0, 0)


@dataclass(frozen=True)
class Rounding(AfterStatistic[RoundingCounts]):
    """What the output cast did, per agent."""

    threshold: float = THRESHOLD
    answers: ClassVar[Answers[RoundingCounts]] = CountsOf(RoundingCounts)

    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> RoundingCounts:
        """Count one stack."""
        return observe_rounding(stack, merged, stored, cast, self.threshold)


def observe_rounding(stack: Stack, merged: Array, stored: Array, cast: Cast, threshold: float) -> RoundingCounts:
    """Compare float32 results with what was stored of them.

    Args:
        stack: what was merged.
        merged: float32 [n], the method's result.
        stored: [n], `merged` after the cast.
        cast: how it was cast; the base and the agents' values are cast with the same random bits.
        threshold: of a change.
    """

    def as_stored(values: Array) -> Array:
        return as_float32(cast.apply(as_float32(values), stack.block.tensor.name, stack.block.start))

    changed = changed_mask(stack.task_vectors(), threshold)
    unique = changed & (changed.sum(axis=0) == 1)
    result = as_float32(stored)
    lost = (merged != as_float32(stack.base)) & (result == as_stored(stack.base))
    differs = np.array([result != as_stored(agent) for agent in stack.agents])
    return RoundingCounts(
        changed.sum(axis=1),
        (changed & lost).sum(axis=1),
        unique.sum(axis=1),
        (unique & differs).sum(axis=1),
        int((np.isinf(result) & np.isfinite(merged)).sum()),
        int((~np.isfinite(merged)).sum()),
    )
