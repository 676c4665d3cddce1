"""How much of each agent's change a stored merge keeps, in its unique and in its shared elements. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels import cpu, profiles
from agentmerge.survey.fixed import fixed_sums, value_of
from agentmerge.survey.overlap import THRESHOLD, changed_mask
from agentmerge.survey.statistic import AfterStatistic
from agentmerge.survey.sums import leaf_sums
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Cast, Stack

Sums = tuple[int, ...]


@dataclass(frozen=True)
class RegionRetention(AfterStatistic[Sums]):
    """<stored - base, tau[t]> and <tau[t], tau[t]> over agent t's unique and shared elements.

    Integers of 2^-72: kept unique, kept shared, energy unique, energy shared, each per agent.
    """

    threshold: float = THRESHOLD

    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> Sums:
        """Sum one stack."""
        tau = stack.task_vectors()
        changed = changed_mask(tau, self.threshold)
        number, wide = changed.sum(axis=0), np.where(changed, tau, 0).astype(np.float64)
        update = (as_float32(stored) - as_float32(stack.base)).astype(np.float64)
        regions = np.where(number == 1, wide, 0), np.where(number >= 2, wide, 0)
        rows = [region * update for region in regions] + [region * region for region in regions]
        return fixed_sums(leaf_sums(np.concatenate(rows)))

    def fused(self, stack: Stack, stored: Array) -> Sums | None:
        """The same in one compiled pass."""
        if stack.tau is not None or not cpu.supports(stack.base, stack.agents, extra=(stored,)):
            return None
        return fixed_sums(profiles.retention(stack.base, stack.agents, stored, self.threshold))

    def combine(self, left: Sums, right: Sums) -> Sums:
        """Sums of integers."""
        return tuple(a + b for a, b in zip(left, right, strict=True))

    def encode(self, answer: Sums) -> list[int]:
        """Plain integers."""
        return list(answer)

    def decode(self, data: Any) -> Sums:
        """Back from plain integers."""
        return tuple(map(int, data))


def region_retentions(sums: Sums) -> list[tuple[float | None, float | None, float | None]]:
    """Per agent the retention over its unique, its shared and all its changed elements; None where there are none."""
    kept_unique, kept_shared, unique, shared = np.array([value_of(total) for total in sums]).reshape(4, -1)
    parts = (kept_unique, unique), (kept_shared, shared), (kept_unique + kept_shared, unique + shared)
    return list(
        zip(*([float(k / e) if e else None for k, e in zip(*part, strict=True)] for part in parts), strict=True)
    )
