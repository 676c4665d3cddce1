"""How much of each agent's change a merge keeps: its projection on the task vector, in all and by region."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.errors import Note
from agentmerge.survey.overlap import THRESHOLD, changed_mask
from agentmerge.survey.statistic import AfterStatistic
from agentmerge.survey.sums import (
    FixedSums,
    TreeSums,
    TreeSumsOf,
    fixed_sums,
    leaf_sums,
    tree_of,
    tree_sums,
    value_of,
)
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.survey.answers import Answers
    from agentmerge.tensors import Array, Cast, Stack


TOLERANCE = 0.02
"""Stored mean retention off by more than this is worth a warning."""


@dataclass(frozen=True)
class StoredRetention(AfterStatistic[TreeSums]):
    """The sums that give retention[t] = <stored - base, tau[t]> / <tau[t], tau[t]>."""

    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> TreeSums:
        """Sum one stack."""
        return retention_sums(stack, as_float32(stored))

    def kernel(self, stack: Stack, stored: Array, kernels: Backend) -> TreeSums | None:
        """The same in one compiled pass."""
        return retention_by(kernels, stack, stored)


def retention_sums(stack: Stack, merged: Array) -> TreeSums:
    """Float64 sums over fixed leaves: <merged - base, tau[t]> of every agent, then <tau[t], tau[t]> of every agent.

    Args:
        stack: base and agents.
        merged: float32 [n].
    """
    tau = stack.task_vectors().astype(np.float64)
    update = (merged - as_float32(stack.base)).astype(np.float64)
    return tree_sums(np.concatenate([update * tau, tau * tau]), stack.block.tensor.name, stack.block.start)


def retention_by(kernels: Backend, stack: Stack, merged: Array) -> TreeSums:
    """The same in one compiled pass, `merged` in any dtype that kernels take."""
    return tree_of(kernels.retention(stack, merged), stack.block.tensor.name, stack.block.start)


def retentions(sums: TreeSums) -> list[float | None]:
    """retention[t] of every agent; None for one that changed nothing, or by more than float32 can tell."""
    return shares(*np.split(sums.total(), 2))


def shares(parts: Array, wholes: Array) -> list[float | None]:
    """Part by whole; None of nothing, and where either is not finite."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole and isfinite(part) and isfinite(whole) else None for part, whole in pairs]


def mean_retention(values: list[float | None]) -> float | None:
    """The mean over the agents that changed something; None when none did."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def undone(who: str, stored: float | None, wanted: float) -> list[Note]:
    """A note where the output cast undid a method's scale.

    Args:
        who: the method.
        stored: the mean retention of what was stored; None where no agent changed anything.
        wanted: the mean retention that the method scales to.
    """
    if stored is None or abs(stored - wanted) <= TOLERANCE * wanted:
        return []
    found = f"{who}: the output cast left a mean retention of {stored:.3f} instead of {wanted:g};"
    return [Note(found, "use --rounding stochastic or --dtype float32")]


@dataclass(frozen=True)
class RegionRetention(AfterStatistic[tuple[int, ...]]):
    """<stored - base, tau[t]> and <tau[t], tau[t]> over agent t's unique and shared elements.

    Fixed sums: kept unique, kept shared, energy unique, energy shared, each per agent.
    """

    threshold: float = THRESHOLD
    answers: ClassVar[Answers[tuple[int, ...]]] = FixedSums()

    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> tuple[int, ...]:
        """Sum one stack."""
        tau = stack.task_vectors()
        changed = changed_mask(tau, self.threshold)
        number, wide = changed.sum(axis=0), np.where(changed, tau, 0).astype(np.float64)
        update = (as_float32(stored) - as_float32(stack.base)).astype(np.float64)
        regions = np.where(number == 1, wide, 0), np.where(number >= 2, wide, 0)
        rows = [region * update for region in regions] + [region * region for region in regions]
        return fixed_sums(leaf_sums(np.concatenate(rows)))

    def kernel(self, stack: Stack, stored: Array, kernels: Backend) -> tuple[int, ...] | None:
        """The same in one compiled pass; of task vectors that a wrapping method made there is none."""
        return None if stack.tau is not None else fixed_sums(kernels.region_retention(stack, stored, self.threshold))


def region_retentions(sums: tuple[int, ...]) -> list[tuple[float | None, float | None, float | None]]:
    """Per agent the retention over its unique, its shared and all its changed elements; None where there are none."""
    kept_unique, kept_shared, unique, shared = np.array([value_of(total) for total in sums]).reshape(4, -1)
    kept, changed = kept_unique + kept_shared, unique + shared
    return list(zip(shares(kept_unique, unique), shares(kept_shared, shared), shares(kept, changed), strict=True))
