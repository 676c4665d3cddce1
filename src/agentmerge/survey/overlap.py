"""Which agents changed each element: the counts that RAM's ratios and scales come from. Knows no methods.

Source: "Behavior Knowledge Merge in Reinforced Agentic Models" (arXiv 2601.13572), sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentmerge.survey.answers import Answers, Counts, CountsOf
from agentmerge.survey.common import Common, common
from agentmerge.survey.integrity import Integrity, IntegrityCounts, fingerprint_key
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import Array, Stack, float32_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.kernels import Backend
    from agentmerge.survey.statistic import Foldable

THRESHOLD = 1e-5
"""Default threshold of a change; float32, strict."""


@dataclass(frozen=True, slots=True, eq=False)
class OverlapCounts(Counts):
    """Exact counts over a set of elements."""

    elements: int
    exactly: Array
    """int64 [agents, agents]: exactly[t, k - 1] elements were changed by agent t and by k agents in all."""
    different: Array
    """int64 [agents]: elements whose float32 bits differ from the base's."""

    @property
    def changed(self) -> tuple[int, ...]:
        """Elements changed by each agent."""
        return tuple(int(row.sum()) for row in self.exactly)

    @property
    def unique(self) -> tuple[int, ...]:
        """Elements changed by this agent alone."""
        return tuple(int(row[0]) for row in self.exactly)

    @property
    def shared(self) -> tuple[int, ...]:
        """Elements changed by this agent and at least one other."""
        return tuple(int(row[1:].sum()) for row in self.exactly)

    @property
    def density(self) -> tuple[float, ...]:
        """Changed fraction of each task vector."""
        return tuple(changed / max(self.elements, 1) for changed in self.changed)

    @property
    def ratio(self) -> tuple[float, ...]:
        """Overlap-unique ratio rho[t] = shared[t] / unique[t]; +inf where only unique is 0, 0 where both are."""
        return tuple(
            shared / unique if unique else (inf if shared else 0.0)
            for shared, unique in zip(self.shared, self.unique, strict=True)
        )


@dataclass(frozen=True)
class Overlap(Statistic[OverlapCounts]):
    """How many elements each agent changed, and how many of them k agents changed.

    Element i is changed by agent t iff |tau[t, i]| > float32(threshold); c[i] is the number of agents that changed it;
    exactly[t, k - 1] = #{i: t changed i and c[i] = k}.
    """

    threshold: float = THRESHOLD
    per_tensor: ClassVar[bool] = True
    answers: ClassVar[Answers[OverlapCounts]] = CountsOf(OverlapCounts)

    def observe(self, stack: Stack) -> OverlapCounts:
        """Count one stack; NaN and inf are told by Integrity."""
        changed = changed_mask(stack.task_vectors(), self.threshold)
        count = changed.sum(axis=0)
        agents = len(stack.agents)
        exactly = np.array([[np.sum(row & (count == k)) for k in range(1, agents + 1)] for row in changed])
        base = float32_bits(stack.base)
        different = [np.sum(float32_bits(agent) != base) for agent in stack.agents]
        return OverlapCounts(stack.base.size, exactly.astype(np.int64), np.array(different, np.int64))

    def kernel(self, stack: Stack, kernels: Backend) -> OverlapCounts | None:
        """The same in one compiled pass."""
        return OverlapCounts(stack.base.size, *kernels.overlap(stack, self.threshold))

    def kernel_with(self, asked: Sequence[Statistic[Any]], stack: Stack, kernels: Backend) -> dict[Foldable[Any], Any]:
        """Together with Integrity, where that is asked too: what every record reports takes one pass."""
        if stack.tau is not None or Integrity() not in asked:
            return super().kernel_with(asked, stack, kernels)
        key = fingerprint_key(stack.block.tensor.name)
        exactly, different, *integrity = kernels.count(stack, self.threshold, key)
        counts = OverlapCounts(stack.base.size, exactly, different)
        trusted = IntegrityCounts(*integrity).read_as(stack, kernels)
        found: dict[Foldable[Any], Any] = {self: counts, Integrity(): trusted}
        return found | ({Common(): common(stack, trusted)} if Common() in asked else {})


def changed_mask(task_vectors: Array, threshold: float) -> Array:
    """|tau| > float32(threshold), strict, in float32: bool [agents, n]; a NaN difference is no change."""
    return np.abs(task_vectors) > np.float32(threshold)
