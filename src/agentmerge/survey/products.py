"""The products of every two task vectors: <tau[s], tau[t]>, from which angles and norms of all their sums follow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import isqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.survey.statistic import Statistic
from agentmerge.survey.sums import TreeSums, TreeSumsOf, tree_of, tree_sums

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.survey.answers import Answers
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class Products(Statistic[TreeSums]):
    """The sums that give <tau[s], tau[t]>: s = 0 with every t from s on, then s = 1 ..."""

    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack) -> TreeSums:
        """Sum one stack."""
        tau = stack.task_vectors().astype(np.float64)
        rows = np.concatenate([tau[s:] * tau[s] for s in range(len(tau))])
        return tree_sums(rows, stack.block.tensor.name, stack.block.start)

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same in a compiled pass per agent; of task vectors that a wrapping method made there is none."""
        if stack.tau is not None:
            return None
        rows = [kernels.retention(stack, agent)[:, s : len(stack.agents)] for s, agent in enumerate(stack.agents)]
        return tree_of(np.concatenate(rows, axis=1), stack.block.tensor.name, stack.block.start)


def product_matrix(sums: TreeSums) -> Array:
    """<tau[s], tau[t]>, float64 [agents, agents]."""
    agents = isqrt(2 * sums.rows)  # rows are agents * (agents + 1) / 2
    found = np.zeros((agents, agents))
    for (s, t), value in zip(combinations_with_replacement(range(agents), 2), sums.total(), strict=True):
        found[s, t] = found[t, s] = value
    return found
