"""TIES: trim each task vector, elect a sign per element, average the agents that agree with it.

"TIES-Merging: Resolving Interference When Merging Models", https://arxiv.org/abs/2306.01708.

    trim      keep[t, i]  = |tau[t, i]| >= the k-th smallest magnitude of tau[t], k = int((1 - density[t]) * elements)
    elect     sign[i]     = sign of the sum over t of weight[t] * kept tau[t, i]
    disjoint  mean[i]     = sum of weight * tau / sum of weight, over the kept tau[t, i] of that sign
              merged[i]   = base[i] + scale * mean[i]

Where public codes disagree: the paper's code and MergeLM trim over the whole task vector (scope "model") and keep every
element equal to the k-th magnitude, which for bfloat16 agents can be thousands; mergekit trims tensor by tensor (scope
"tensor"). Where the elected sum is exactly 0, MergeLM takes the sign that most elements of the checkpoint elected
(zero_sign "majority"), mergekit the positive changes ("plus"). mergekit's dare_ties adds the agents that agree instead
of averaging them (normalize false). MergeLM keeps exact zeros when the k-th magnitude is 0, which is harmless there
because zeros add nothing; here only real changes are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Dilution, MergeMethod, Told, added
from agentmerge.methods.cut import NOWHERE, Cut, Limits, elements_of
from agentmerge.methods.density import Density, check_density, densities_of, keeps_all
from agentmerge.survey.answers import Integers
from agentmerge.survey.magnitude import count_of, magnitude, ranked
from agentmerge.survey.statistic import Statistic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.kernels import Backend
    from agentmerge.methods.base import Context
    from agentmerge.survey.answers import Answers, Histogram
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


def trim(tau: Array, limits: Limits, tensor: str) -> Array:
    """The task vectors float32 [agents, n] with 0 for every magnitude under its agent's limit."""
    limit = limits.at(tensor, ())
    if not limit:
        return tau
    return np.where(np.abs(tau) >= np.array(limit, np.float32)[:, None], tau, np.float32(0))


def elect(kept: Array, weight: Array) -> Array:
    """The sign of the weighted sum of kept float32 [agents, n]: -1, 0 or 1, float32 [n]."""
    total = np.zeros(kept.shape[1], np.float32)
    for w, tau in zip(weight, kept, strict=True):
        total += w * tau
    return np.sign(total)


def disjoint_mean(kept: Array, sign: Array, weight: Array) -> Array:
    """The weighted mean over the kept elements of the elected sign, float32 [n]; 0 where there are none."""
    divisor = np.zeros(kept.shape[1], np.float32)
    for w, tau in zip(weight, kept, strict=True):
        divisor += np.where(_agrees(w, tau, sign), w, np.float32(0))
    total = disjoint_sum(kept, sign, weight)
    return np.where(divisor == 0, np.float32(0), total / np.where(divisor == 0, np.float32(1), divisor))


def disjoint_sum(kept: Array, sign: Array, weight: Array) -> Array:
    """The weighted sum over the kept elements of the elected sign, float32 [n]."""
    total = np.zeros(kept.shape[1], np.float32)
    for w, tau in zip(weight, kept, strict=True):
        total += np.where(_agrees(w, tau, sign), w * tau, np.float32(0))
    return total


def _agrees(weight: float, tau: Array, sign: Array) -> Array:
    agrees: Array = (np.sign(weight * tau) == sign) & (tau != 0)
    return agrees


class Ties(MergeMethod):
    """Trim, elect, disjoint mean, scale."""

    about: ClassVar[Mapping[str, str]] = {"ties": "TIES: trim small changes, elect signs, average what agrees."}

    name: Literal["ties"] = "ties"
    density: Density = 0.2
    """Kept fraction of each task vector, by magnitude; a number, or one for each agent by its name."""
    scale: float = 1.0
    """Multiplies the disjoint mean."""
    scope: Literal["model", "tensor"] = "model"
    """Over what the magnitudes are ranked: the whole task vector (the paper), or each tensor (mergekit)."""
    zero_sign: Literal["majority", "zero", "plus"] = "majority"
    """What an element with an elected sum of exactly 0 takes: the checkpoint's majority sign, the base, or +."""
    normalize: bool = True
    """Divide by the weights of the agents that agree; false takes their sum."""

    def bind(self, context: Context) -> Self:
        """A density by agent must name all of them."""
        check_density(self.density, context)
        return self

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The upper bits of the magnitudes, then the lower ones, then the majority sign."""
        if not keeps_all(self.density) and (asked := self._cut.ask(survey)):
            return asked
        if self.zero_sign == "majority" and not survey.knows(elected := ElectedSigns(self._limits(survey))):
            return (elected,)
        return ()

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        limits, zero = survey.derived(self, lambda: self._found(survey))
        kept = trim(stack.task_vectors(), limits, stack.block.tensor.name)
        sign = elect(kept, stack.weight())
        sign = np.where(sign == 0, zero, sign)
        combined = (
            disjoint_mean(kept, sign, stack.weight()) if self.normalize else disjoint_sum(kept, sign, stack.weight())
        )
        return added(stack.base, np.float32(self.scale) * combined)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("ties",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        limits, zero = survey.derived(self, lambda: self._found(survey))
        limit = np.array(limits.at(stack.block.tensor.name, ()), np.float32)
        weight, mean = stack.weight(), int(self.normalize)
        settings = formulas.Ties(self.overlap.threshold, weight, limit, float(zero), self.scale, mean)
        return (Kernel("ties", settings, stack),)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """The smallest kept magnitude of each agent, and how many elements are equal to it; all of them are kept.

        0 and 0 where the agent changed less than the density: then every change is kept.
        """
        cut = self._cut
        if keeps_all(self.density) or self.scope == "tensor" or cut.ask(survey):
            return Told()
        low, trimmed = survey.total(cut.low(survey)), {}
        for t, (high, rank) in enumerate(cut.chosen(survey.total(cut.high))):
            key = ranked(low[t], rank)[0] if high >= 0 else 0
            smallest = magnitude(max(high, 0), key)
            trimmed[names[t]] = {"smallest_kept": smallest, "ties": count_of(low[t], key) if smallest else 0}
        return Told(learned={"trim": trimmed})

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The share of an agent's changes that the trim keeps, times the scale."""
        densities = densities_of(self.density, len(names))
        kept = np.minimum(1.0, np.array(densities) / np.array(counts.density))
        shares = ", ".join(dict.fromkeys(f"{100 * density:g}" for density in densities))
        largest = f"{self.scale:g} for the largest {shares} % of all elements"
        note = f"mean over changed elements: {largest}, else 0"
        return Dilution(kept * self.scale, np.full(len(names), np.nan), note)

    @property
    def _cut(self) -> Cut:
        """At the k-th smallest magnitude, k = int((1 - density) * elements)."""

        def rank(t: int, high: Histogram) -> int:
            return int(elements_of(high) * (1 - densities_of(self.density, t + 1)[t]))

        return Cut(self.scope == "tensor", rank)

    def _found(self, survey: Survey) -> tuple[Limits, np.float32]:
        """The limits, and the sign of an elected sum of 0."""
        limits = self._limits(survey)
        if self.zero_sign != "majority":
            return limits, np.float32(self.zero_sign == "plus")
        positive, negative = survey.total(ElectedSigns(limits))
        return limits, np.float32(np.sign(positive - negative))

    def _limits(self, survey: Survey) -> Limits:
        return NOWHERE if keeps_all(self.density) else self._cut.limits(survey)


@dataclass(frozen=True)
class ElectedSigns(Statistic[tuple[int, ...]]):
    """How many elements of the checkpoint elected + and how many -."""

    limits: Limits
    answers: ClassVar[Answers[tuple[int, ...]]] = Integers()

    def observe(self, stack: Stack) -> tuple[int, ...]:
        """Count one stack."""
        kept = trim(stack.task_vectors(), self.limits, stack.block.tensor.name)
        sign = elect(kept, stack.weight())
        return int((sign > 0).sum()), int((sign < 0).sum())

    def kernel(self, stack: Stack, kernels: Backend) -> tuple[int, ...] | None:
        """The same in one compiled pass."""
        limit = np.array(self.limits.at(stack.block.tensor.name, ()), np.float32)
        return kernels.signs(stack, stack.weight(), limit)
