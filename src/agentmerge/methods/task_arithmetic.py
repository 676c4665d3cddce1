"""Task Arithmetic and the weighted mean: every element of every task vector, times one number. Knows no files.

"Editing Models with Task Arithmetic", https://arxiv.org/abs/2212.04089.

    task_arithmetic: merged = base + scale * sum over t of weight[t] * tau[t]        scale null is 1 / N
    linear:          merged = base + sum of weight[t] * tau[t] / sum of weight[t]    "Model soups", arXiv 2203.05482

Where public codes disagree: MergeLM scales the plain sum by one coefficient (0.3 by default); mergekit gives each
agent a weight and, with normalize, divides by their sum, which is `linear` here. At scale 1 / N and equal weights the
two methods are the same up to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentmerge.errors import RecipeError
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import MergeMethod, added

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


class TaskArithmetic(MergeMethod):
    """The scaled sum of the task vectors."""

    about: ClassVar[Mapping[str, str]] = {"task_arithmetic": "Task Arithmetic: the scaled sum of the task vectors."}

    name: Literal["task_arithmetic"] = "task_arithmetic"
    scale: float | None = None
    """Multiplies the sum; null is 1 / N, the mean of N agents."""

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; the sum runs over the agents in sorted-name order."""
        scale = 1 / len(stack.agents) if self.scale is None else self.scale
        return added(stack.base, np.float32(scale) * weighted_sum(stack))

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("linear",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        scale = 1 / len(stack.agents) if self.scale is None else self.scale
        settings = formulas.Linear(self.overlap.threshold, stack.weight(), scale=scale)
        return (Kernel("linear", settings, stack),)


class Linear(MergeMethod):
    """The weighted mean of the agents."""

    about: ClassVar[Mapping[str, str]] = {"linear": "The weighted mean of the agents."}

    name: Literal["linear"] = "linear"
    normalize: bool = True
    """Divide by the sum of the weights; false adds the weighted task vectors as they are."""

    def check(self, weights: Mapping[str, float]) -> None:
        """The mean needs weights that do not cancel."""
        total, size = sum(weights.values()), sum(map(abs, weights.values()))
        if self.normalize and abs(total) <= 1e-6 * size:  # as float32 weights tell it
            raise RecipeError("agents: the weights add up to 0, which `linear` divides by. Change one of them.")

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]."""
        return added(stack.base, weighted_sum(stack) / np.float32(self._divisor(stack)))

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("linear",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        settings = formulas.Linear(self.overlap.threshold, stack.weight(), divisor=self._divisor(stack))
        return (Kernel("linear", settings, stack),)

    def _divisor(self, stack: Stack) -> float:
        return float(sum(stack.weight().tolist())) if self.normalize else 1.0


def weighted_sum(stack: Stack) -> Array:
    """The sum of weight[t] * tau[t] in the agents' order, float32 [n]."""
    total = np.zeros(stack.base.size, np.float32)
    for weight, tau in zip(stack.weight(), stack.task_vectors(), strict=True):
        total += weight * tau
    return total
