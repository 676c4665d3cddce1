"""How much of each agent's change a merge keeps: its projection on the task vector. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels import cpu, folds
from agentmerge.survey.statistic import AfterStatistic
from agentmerge.survey.sums import SumsOverLeaves, TreeSums, tree_of, tree_sums
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Cast, Stack


@dataclass(frozen=True)
class StoredRetention(SumsOverLeaves, AfterStatistic[TreeSums]):
    """The sums that give retention[t] = <stored - base, tau[t]> / <tau[t], tau[t]>."""

    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> TreeSums:
        """Sum one stack."""
        return retention_sums(stack, as_float32(stored))

    def fused(self, stack: Stack, stored: Array) -> TreeSums | None:
        """The same in one compiled pass."""
        return retention_by_kernel(stack, stored)


def retention_sums(stack: Stack, merged: Array) -> TreeSums:
    """Float64 sums over fixed leaves: <merged - base, tau[t]> of every agent, then <tau[t], tau[t]> of every agent.

    Args:
        stack: base and agents.
        merged: float32 [n].
    """
    tau = stack.task_vectors().astype(np.float64)
    update = (merged - as_float32(stack.base)).astype(np.float64)
    return tree_sums(np.concatenate([update * tau, tau * tau]), stack.block.tensor.name, stack.block.start)


def retention_by_kernel(stack: Stack, merged: Array) -> TreeSums | None:
    """The same in one compiled pass, `merged` in any stored dtype; None where no kernel takes the dtypes."""
    if not cpu.supports(stack.base, stack.agents, extra=(merged,)):
        return None
    sums = folds.retention(stack.base, stack.agents, merged, stack.tau)
    return tree_of(sums, stack.block.tensor.name, stack.block.start)


def retentions(sums: TreeSums) -> list[float | None]:
    """retention[t] of every agent; None for one that changed nothing."""
    kept, energy = np.split(sums.total(), 2)
    return [float(k / e) if e else None for k, e in zip(kept, energy, strict=True)]


def mean_retention(values: list[float | None]) -> float | None:
    """The mean over the agents that changed something; None when none did."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
