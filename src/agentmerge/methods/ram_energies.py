"""What the shared region costs each agent: the energies that RAM's automatic scale comes from.

Over the elements that agent t changed, with u[t] = weight[t] * tau[t] and s the update that a shared element gets:

    E_unique[t] = sum of u[t, i]^2 where only t changed i
    E_shared[t] = sum of u[t, i]^2 where others changed i too
    P_shared[t] = sum of u[t, i] * s[i] where others changed i too
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.methods.ram_shared import Shared, shared_settings, shared_update
from agentmerge.survey.overlap import changed_mask
from agentmerge.survey.statistic import Statistic
from agentmerge.survey.sums import TreeSums, TreeSumsOf, tree_of, tree_sums

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.survey.answers import Answers
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class Energies(Statistic[TreeSums]):
    """E_unique, E_shared and P_shared of every agent, in this order, float64."""

    threshold: float
    shared: Shared
    power: float
    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack) -> TreeSums:
        """Sum one stack."""
        tau = stack.task_vectors()
        changed = changed_mask(tau, self.threshold)
        updates = stack.weight()[:, None] * tau
        result = shared_update(stack, updates, changed, self.shared, self.power).astype(np.float64)
        count, wide = changed.sum(axis=0), np.where(changed, updates, 0).astype(np.float64)
        unique, shared = wide * (count == 1), wide * (count >= 2)
        rows = np.concatenate([unique * unique, shared * shared, shared * result])
        return tree_sums(rows, stack.block.tensor.name, stack.block.start)

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same in one compiled pass."""
        settings = shared_settings(stack, self.shared, self.power)
        sums = kernels.energies(stack, self.threshold, settings, stack.extra.get("importance", ()))
        return tree_of(sums, stack.block.tensor.name, stack.block.start)


def balanced_scales(
    unique: Array, shared: Array, kept: Array, bound: float | None, retention: float = 1.0
) -> tuple[float, ...]:
    """lambda[t] = (retention * (E_unique + E_shared) - P_shared) / E_unique, at least 0 and at most `bound`.

    1 where nothing is unique. So what is kept, lambda * E_unique + P_shared, is that share of what there was.

    Args:
        unique: E_unique, float64 [agents].
        shared: E_shared, float64 [agents].
        kept: P_shared, float64 [agents].
        bound: the largest scale; None for none.
        retention: that each agent shall have.
    """
    most, scales = inf if bound is None else bound, []
    for u, e, p in zip(unique.tolist(), shared.tolist(), kept.tolist(), strict=True):
        more = (retention - 1) * ((u + e) / u) if u else 0.0  # exactly 0 at the usual 1
        scales.append(min(max(1 + (e - p) / u + more, 0.0), most) if u else 1.0)
    return tuple(scales)


def scales_from(sums: TreeSums, bound: float | None, retention: float = 1.0) -> tuple[float, ...]:
    """The same from the sums that Energies folds."""
    unique, shared, kept = np.split(sums.total(), 3)
    return balanced_scales(unique, shared, kept, bound, retention)
