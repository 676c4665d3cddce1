"""SCE: select what the agents disagree about, calculate each one's share, erase the minority's signs.

"FuseChat: Knowledge Fusion of Chat Models", https://arxiv.org/abs/2408.07990, section 3.3.

    select     var[i]    = mean over t of (tau[t, i] - mean over s of tau[s, i])^2
               kept      = the int(select_topk * elements with var > 0) largest of a tensor; all of it at 1
    calculate  energy[t] = mean of tau[t]^2 over the tensor, 0 for what is not kept
               share[t]  = weight[t] * energy[t] / sum; weight[t] / sum of weights where the energies add up to < floor
    erase      sign[i]   = sign of the sum of weight[t] * tau[t, i], + for 0
               merged[i] = base + scale * (sum of share * tau over those of that sign) / (sum of their shares)

The floor is mergekit's, and it decides: at the size of RL changes (energies of 3e-7 on the golden set) the shares are
equal, and at select_topk 1 the method is then TIES at density 1 with sign +: a unique element keeps its whole change.
With floor 0 the shares are the paper's, of whatever size; a unique element still cancels its own.

Where public codes disagree: mergekit, like FuseChat's own code, takes the mean over all elements of a tensor. Elements
of one variance at the cut all stay here; mergekit keeps as many of them as are left, by its sort. mergekit knows no
weights; here they multiply a vote and a share, and 1 is mergekit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from agentmerge import kernels
from agentmerge.errors import RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Context, Dilution, MergeMethod, added
from agentmerge.methods.cut import Cut, Limits
from agentmerge.methods.making import Made, Maker
from agentmerge.survey.products import Powers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.survey.answers import Histogram
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Stack

LEAST = 1e-6
"""Of a sum of shares, which is divided by; mergekit's."""


def variance(tau: Array) -> Array:
    """Of each element over the agents, float32 [n]; sums run over the agents in their order."""
    count: Any = np.float32(len(tau))
    mean, total = np.zeros(tau.shape[1], np.float32), np.zeros(tau.shape[1], np.float32)
    for row in tau:
        mean += row
    mean /= count
    for row in tau:
        total += (row - mean) * (row - mean)
    total /= count
    return total


def selected(tau: Array, limit: float) -> Array:
    """The task vectors float32 [agents, n] with 0 where the variance is less."""
    if not limit:
        return tau
    kept: Array = np.where(variance(tau) >= np.float32(limit), tau, np.float32(0))
    return kept


class Sce(MergeMethod):
    """Select, calculate, erase."""

    about: ClassVar[Mapping[str, str]] = {"sce": "SCE: keep what varies most, weigh agents by energy, elect signs."}

    name: Literal["sce"] = "sce"
    select_topk: float = Field(default=1.0, gt=0, le=1)
    """Of the elements of a tensor on which the agents differ, the share of the largest variances that is kept."""
    floor: float = Field(default=1e-6, ge=0)
    """Where the energies of a tensor add up to less, every agent has the same share; 0 is the paper."""
    scale: float = 1.0
    """Multiplies the merged task vector."""

    def bind(self, context: Context) -> Self:
        """Shares of a mean are not negative, and not all 0."""
        if min(context.weights.values()) < 0 or not any(context.weights.values()):
            found = f"agents: sce needs weights of at least 0, one of them more, found {dict(context.weights)}"
            raise RecipeError(found, todo="Change them.", where=Where(path="agents"))
        return self

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The cut of the variances, in two passes, then the energies of what is kept."""
        if self.select_topk < 1 and (asked := self._cut.ask(survey)):
            return asked
        return () if survey.knows(energies := self._energies(survey)) else (energies,)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        settings = self._settings(stack, survey)
        kept = selected(stack.task_vectors(), settings.limit)
        vote, total, divisor = np.zeros((3, stack.base.size), np.float32)
        for w, row in zip(stack.weight(), kept, strict=True):
            vote += w * row
        sign = np.where(vote < 0, np.float32(-1), np.float32(1))
        for share, row in zip(settings.share, kept, strict=True):
            agrees = row * sign > 0
            total += np.where(agrees, share * row, np.float32(0))
            divisor += np.where(agrees, share, np.float32(0))
        mean = total / np.maximum(divisor, np.float32(LEAST))
        return added(stack.base, np.float32(self.scale) * mean)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("sce",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        return (Kernel("sce", self._settings(stack, survey), stack),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """Its own change whole, where it is kept: a share cancels itself."""
        if self.select_topk < 1:
            return Dilution.unknown(len(names), f"{self.scale:g} where the variance is large, else 0")
        whole = np.full(len(names), self.scale)
        return Dilution(whole, np.full(len(names), np.nan), "unique changes whole; the mean of one sign elsewhere")

    @property
    def _cut(self) -> Cut:
        """The smallest variance that is kept. What is below 4.6e-41 counts as 0."""

        def rank(_: int, high: Histogram) -> int:
            keys, counts = high
            elements, varying = int(counts.sum()), int(counts[keys > 0].sum())
            kept = int(self.select_topk * varying)
            return elements - kept + 1 if kept else 0

        return Cut(by_tensor=True, rank=rank, maker=Variance())

    def _energies(self, survey: Survey) -> Statistic[Any]:
        return Powers(2) if self.select_topk == 1 else Made(Powers(2), self._selection(survey))

    def _selection(self, survey: Survey) -> Select:
        return survey.derived((self, "selection"), lambda: self._selected(survey))

    def _selected(self, survey: Survey) -> Select:
        """The smallest variance that stays, by tensor; inf where none does, as what varies lies above 0."""
        found = self._cut.limits(survey)
        return Select(Limits({tensor: (limit or inf,) for tensor, (limit,) in found.items()}))

    def _settings(self, stack: Stack, survey: Survey) -> formulas.Sce:
        tensor = stack.block.tensor.name
        share = survey.derived((self, tensor, stack.weights), lambda: self._share(stack, survey))
        limit = self._selection(survey).at(tensor) if self.select_topk < 1 else 0.0
        return formulas.Sce(self.overlap.threshold, stack.weight(), share, limit, LEAST, self.scale)

    def _share(self, stack: Stack, survey: Survey) -> Array:
        """Each agent's share in the mean, float32 [agents]."""
        tensor, weight = stack.block.tensor, stack.weight().astype(np.float64)
        energy = survey.total(self._energies(survey)).of(tensor.name).total() / max(tensor.elements, 1)
        share = weight if energy.sum() < self.floor or not energy.any() else weight * energy
        total = share.sum()
        return np.asarray(share / total if total else share, np.float32)


@dataclass(frozen=True)
class Variance(Maker):
    """The variance over the agents, as the only task vector of a stack."""

    key = "Variance"

    def __call__(self, stack: Stack) -> Stack:
        """A stack of the base and the variances."""
        backend = kernels.choose(stack)
        found = variance(stack.task_vectors()) if backend is None else backend.variances(stack)
        alone: dict[str, Any] = {"agents": (stack.base,), "names": ("variance",), "weights": (), "stored": ()}
        return replace(stack, tau=found[None], **alone)


@dataclass(frozen=True)
class Select(Maker):
    """Leaves the elements whose variance is large enough."""

    limits: Limits
    """The smallest variance that stays, of the one task vector that `Variance` makes."""

    @property
    def key(self) -> str:
        """A digest of the limits."""
        return f"Selected {self.limits.digest}"

    def __call__(self, stack: Stack) -> Stack:
        """The stack with task vectors that hold nothing else."""
        limit = self.at(stack.block.tensor.name)
        if (backend := kernels.choose(stack)) is not None:
            return replace(stack, tau=backend.select(stack, limit))
        return replace(stack, tau=selected(stack.task_vectors(), limit))

    def at(self, tensor: str) -> float:
        """The smallest variance that stays in a tensor."""
        (limit,) = self.limits.at(tensor)
        return limit
