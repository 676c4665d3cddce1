"""Fisher merging: a mean weighted by how much each agent's own data depends on each element.

"Merging Models with Fisher-Weighted Averaging", https://arxiv.org/abs/2111.09832.

    f[t]      = (importance[t] + floor) * coefficient[t]
    merged    = base + scale * sum over t of f[t] * tau[t] / sum over t of f[t]
    coefficient[t] = weight[t]                                                                plain
                   = weight[t] / (norm[t] + floor) / sum over s of 1 / (norm[s] + floor)      normalize

norm[t] is the Euclidean norm of the agent's importance over all merged elements. A coefficient common to all agents
cancels in the mean, so only their ratios count; that is why `scale`, which multiplies the merged task vector, is a
field of its own. Where an agent is skipped or lacks the tensor nobody knows what is important to it: there it takes no
part in either sum, and the floor does not bring it back. The formula and the floor are MergeLM's, which averages the
agents' values instead of their task vectors: the same mean, but its float32 rounding is up to 5 ulp off the exact
value, this one's at most 1. An element that is important to no agent keeps the base's value, where MergeLM's floor
would average the agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Dilution, MergeMethod, added
from agentmerge.survey.statistic import Statistic
from agentmerge.survey.sums import TreeSums, TreeSumsOf, tree_of, tree_sums
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.kernels import Backend
    from agentmerge.survey.answers import Answers
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


def fisher_mean(importances: Sequence[Array], taus: Array, coefficients: Array, floor: float) -> Array:
    """Sum of f[t] * tau[t] / sum of f[t], float32 [n], in the agents' order; 0 where nothing is important.

    Args:
        importances: [n] of each agent, in any stored dtype.
        taus: task vectors, float32 [agents, n].
        coefficients: float32 [agents].
        floor: added to every importance.
    """
    total, divisor = np.zeros((2, taus.shape[1]), np.float32)
    important = np.zeros(taus.shape[1], np.bool_)
    for raw, tau, coefficient in zip(importances, taus, coefficients, strict=True):
        importance = as_float32(raw)
        factor = coefficient * (importance + np.float32(floor))
        total += factor * tau
        divisor += factor
        important |= importance != 0
    return np.where(important, total / np.where(divisor == 0, np.float32(1), divisor), np.float32(0))


class Fisher(MergeMethod):
    """The importance-weighted mean of the task vectors."""

    about: ClassVar[Mapping[str, str]] = {"fisher": "Fisher merging: the importance-weighted mean of the task vectors."}

    name: Literal["fisher"] = "fisher"
    scale: float = 1.0
    """Multiplies the merged task vector."""
    normalize: bool = False
    """Divide each agent's importance by its norm, so that one of larger gradients does not outweigh the others."""
    floor: float = Field(default=1e-6, ge=0)
    """Added to every importance."""

    @property
    def reads(self) -> tuple[Literal["importance"], ...]:
        """The agents' importance."""
        return ("importance",)

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The norms of the importances, where they count."""
        return (ImportanceNorm(),) if self.normalize and not survey.knows(ImportanceNorm()) else ()

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        coefficients = self._coefficients(stack, survey)
        mean = fisher_mean(stack.extra["importance"], stack.task_vectors(), coefficients, self.floor)
        return added(stack.base, np.float32(self.scale) * mean)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("fisher",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        coefficients, threshold = self._coefficients(stack, survey), self.overlap.threshold
        settings = formulas.Fisher(threshold, coefficients, self.scale, self.floor)
        return (Kernel("fisher", settings, stack, stack.extra["importance"]),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """A full probe reads no importance."""
        return Dilution.unknown(len(names), "depends on the importance of each element")

    def _coefficients(self, stack: Stack, survey: Survey) -> Array:
        weight = stack.weight() * [name not in stack.absent for name in stack.names]
        if not self.normalize:
            return weight
        size = survey.derived(self, lambda: np.sqrt(survey.total(ImportanceNorm()).total())) + self.floor
        share = np.where(size == 0, 0, 1 / np.where(size == 0, 1, size))  # an agent of no importance at all has no say
        coefficients: Array = (weight * share / (share.sum() or 1)).astype(np.float32)
        return coefficients


@dataclass(frozen=True)
class ImportanceNorm(Statistic[TreeSums]):
    """Per agent, the sum of squared importances."""

    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack) -> TreeSums:
        """Sum one stack in float64."""
        squares = np.stack([as_float32(raw).astype(np.float64) ** 2 for raw in stack.extra["importance"]])
        return tree_sums(squares, stack.block.tensor.name, stack.block.start)

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same in one compiled pass."""
        return tree_of(kernels.squares(stack.extra["importance"]), stack.block.tensor.name, stack.block.start)
