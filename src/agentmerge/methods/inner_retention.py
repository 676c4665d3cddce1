"""How much of the agents' changes another method's merge keeps, measured in a fold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentmerge.methods.kernel import merge_by_kernels, parts_of, sees_whole
from agentmerge.survey.retention import retention_by, retention_sums
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.survey.sums import TreeSums, TreeSumsOf
from agentmerge.tensors import LEAF, Cast, Reach

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.kernels import Backend
    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.answers import Answers
    from agentmerge.tensors import Array, Stack, TensorSpec


def settings_of(method: MergeMethod) -> str:
    """As JSON."""
    return json.dumps(method.model_dump(mode="json"), sort_keys=True)


@lru_cache(maxsize=64)
def draft_of(method: MergeMethod) -> str:
    """Tells the merges of one method from those of others."""
    return sha256(settings_of(method).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class InnerRetention(Statistic[TreeSums]):
    """The sums of a method's retention; the method is ready to merge."""

    settings: str
    """The method as JSON: what tells this statistic from others."""
    method: Any = field(compare=False, repr=False)
    survey: Survey = field(compare=False, repr=False)
    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    @property
    def key(self) -> str:
        """By the method's settings."""
        return f"InnerRetention {self.settings}"

    def reach(self, tensor: TensorSpec, agents: int) -> Reach:
        """As of the method whose merge it is."""
        reach: Reach = self.method.work(tensor, agents).reach
        return reach

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """As of the method whose merge it is."""
        return float(self.method.work(tensor, agents).share)

    def flop(self, tensor: TensorSpec, agents: int) -> float:
        """As of the method whose merge it is."""
        return float(self.method.work(tensor, agents).flop)

    def observe(self, stack: Stack) -> TreeSums:
        """Merge one stack and sum."""
        return retention_sums(stack, self._merged(stack))

    def _merged(self, stack: Stack) -> Array:
        """The merge, float32 [n], kept for the pass that writes."""
        merged: Array = self.method.merge(stack, self.survey)
        block = stack.block
        if self.survey.kept is not None and sees_whole(self.method, stack):
            self.survey.kept.keep(f"{draft_of(self.method)} {block.tensor.name}", block.start, merged)
        return merged

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same by kernels, part by part; what must be merged whole is merged by its definition before."""
        if sees_whole(self.method, stack):
            return retention_by(kernels, stack, self._merged(stack))
        total = TreeSums(2 * len(stack.agents))
        for part in parts_of(self.method, stack):
            merged = inner_merge(self.method, part, self.survey)
            if merged is None:
                return None
            total += retention_by(kernels, part, merged)
        return total

    def parts(self, stack: Stack, elements: int = 32 * LEAF) -> Iterable[Stack]:
        """Those that the method may see one by one."""
        return parts_of(self.method, stack, elements)


@dataclass(frozen=True)
class RetentionOutside(InnerRetention):
    """The same sums of what is not merged as whole matrices; each of those has its own s, where it is merged."""

    @property
    def key(self) -> str:
        """By the method's settings."""
        return f"RetentionOutside {self.settings}"

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """Whole matrices are not merged for it."""
        return 0.0

    def flop(self, tensor: TensorSpec, agents: int) -> float:
        """Whole matrices are not merged for it."""
        return 0.0

    def observe(self, stack: Stack) -> TreeSums:
        """Merge one stack and sum."""
        return TreeSums(2 * len(stack.agents)) if sees_whole(self.method, stack) else super().observe(stack)

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same by kernels."""
        if sees_whole(self.method, stack):
            return TreeSums(2 * len(stack.agents))
        return super().kernel(stack, kernels)


def inner_merge(method: MergeMethod, stack: Stack, survey: Survey) -> Array | None:
    """What the method's kernel merges, float32 [n]; None where it has none for a piece of this tensor."""
    if sees_whole(method, stack):
        return None
    merged = np.empty(stack.base.size, np.float32)
    return None if merge_by_kernels(method, stack, survey, Cast("F32"), merged) is None else merged
