"""Task Arithmetic and the weighted mean: every element of every task vector, times one number.

"Editing Models with Task Arithmetic", https://arxiv.org/abs/2212.04089.

    task_arithmetic: merged = base + scale * sum over t of weight[t] * tau[t]        scale null is 1 / N
    linear:          merged = base + sum of weight[t] * tau[t] / sum of weight[t]    "Model soups", arXiv 2203.05482

Where public codes disagree: MergeLM scales the plain sum by one coefficient (0.3 by default); mergekit gives each
agent a weight and, with normalize, divides by their sum, which is `linear` here. At scale 1 / N and equal weights the
two methods are the same up to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np

from agentmerge.errors import RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Context, Dilution, MergeMethod, added
from agentmerge.survey.full.definitions import pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


def weighted_sum(stack: Stack) -> Array:
    """The sum of weight[t] * tau[t] in the agents' order, float32 [n]."""
    total = np.zeros(stack.base.size, np.float32)
    for weight, tau in zip(stack.weight(), stack.task_vectors(), strict=True):
        total += weight * tau
    return total


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

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The scale, of a unique element as of any other."""
        agents, whole = len(names), retention_of_sum(energy)
        if self.scale is None:
            note = "scale 1 / N; at scale 1 N times as much"
            return Dilution(np.full(agents, 1 / agents), whole / agents, note, linear=True)
        note = "the plain sum" if self.scale == 1 else f"{self.scale:g} times the sum"
        return Dilution(np.full(agents, self.scale), self.scale * whole, note, linear=True)


class Linear(MergeMethod):
    """The weighted mean of the agents."""

    about: ClassVar[Mapping[str, str]] = {"linear": "The weighted mean of the agents."}

    name: Literal["linear"] = "linear"
    normalize: bool = True
    """Divide by the sum of the weights; false adds the weighted task vectors as they are."""

    def bind(self, context: Context) -> Self:
        """The mean needs weights that do not cancel."""
        weights = context.weights.values()
        if self.normalize and abs(sum(weights)) <= 1e-6 * sum(map(abs, weights)):  # as float32 weights tell it
            found = "agents: the weights add up to 0, which `linear` divides by"
            raise RecipeError(found, todo="Change one of them.", where=Where(path="agents"))
        return self

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

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """1 / N of every change, or all of it."""
        agents = len(names) if self.normalize else 1
        note = "the mean" if self.normalize else "the plain sum"
        return Dilution(np.full(len(names), 1 / agents), retention_of_sum(energy) / agents, note, linear=True)

    def _divisor(self, stack: Stack) -> float:
        return float(sum(stack.weight().tolist())) if self.normalize else 1.0


def retention_of_sum(energy: Energy) -> Array:
    """<sum over s of tau[s], tau[t]> / <tau[t], tau[t]> over the changed elements, float64 [agents]."""
    own = energy.unique + energy.shared
    along = own.copy()
    for p, (s, t) in enumerate(pairs(len(own))):
        along[s] += energy.dot[p]
        along[t] += energy.dot[p]
    return np.asarray(along / own)
