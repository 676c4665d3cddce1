"""Inner products of the task vectors of a tensor, so norms and cosines; and sums of magnitudes and of squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentmerge.survey.statistic import Statistic
from agentmerge.survey.sums import TreeSums, TreeSumsOf, tree_of, tree_sums

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.survey.answers import Answers
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class Products(Statistic[TreeSums]):
    """<tau[s], tau[t]> of every s <= t in float64: (0, 0), (0, 1), ..., (1, 1), ...; `gram` makes a matrix of them."""

    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack) -> TreeSums:
        """Sum one stack."""
        tau = stack.task_vectors().astype(np.float64)
        upper = zip(*np.triu_indices(len(tau)), strict=True)
        rows = np.stack([tau[s] * tau[t] for s, t in upper])
        return tree_sums(rows, stack.block.tensor.name, stack.block.start)

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same in one compiled pass."""
        return tree_of(kernels.products(stack), stack.block.tensor.name, stack.block.start)


def gram(sums: TreeSums) -> Array:
    """G[s, t] = <tau[s], tau[t]>, float64 [agents, agents]."""
    upper = sums.total()
    agents = int(np.sqrt(2 * upper.size))
    found = np.zeros((agents, agents))
    found[np.triu_indices(agents)] = upper
    return found + np.triu(found, 1).T


@dataclass(frozen=True)
class Powers(Statistic[TreeSums]):
    """Per agent, the sum of |tau|^power, float64."""

    power: Literal[1, 2]
    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack) -> TreeSums:
        """Sum one stack."""
        sizes = np.abs(stack.task_vectors().astype(np.float64))
        return tree_sums(sizes if self.power == 1 else sizes * sizes, stack.block.tensor.name, stack.block.start)

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same in one compiled pass."""
        return tree_of(kernels.powers(stack, self.power), stack.block.tensor.name, stack.block.start)
