"""The answers of a full probe, and what follows from them more than once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.survey.full.question import ProfileCounts
from agentmerge.survey.modules import Module, module_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.survey.full.question import Energy, Groups
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.tensors import Array


MOST = 1 << 22
"""Elements that are sampled at most, and half of it at least: a share is within 0.11 points, three standard errors."""


def sample_of(elements: int) -> int:
    """One of how many leaves a full probe samples: a power of two."""
    return 1 << max(0, (elements - 1).bit_length() - MOST.bit_length() + 1)


@dataclass(frozen=True)
class Measured:
    """The answers of a full probe: what every row is made of."""

    names: Sequence[str]
    tensors: Mapping[str, OverlapCounts]
    """Exact counts per tensor."""
    groups: Groups
    """Counts of the profile, per module."""

    @cached_property
    def overlap(self) -> dict[Module, OverlapCounts]:
        """The exact counts per module."""
        found: dict[Module, OverlapCounts] = {}
        for name, counts in self.tensors.items():
            module = module_of(name)
            found[module] = found[module] + counts if module in found else counts
        return found

    @cached_property
    def total(self) -> ProfileCounts:
        """Over all modules."""
        return ProfileCounts.sum(list(self.groups.values()))

    @cached_property
    def energy(self) -> Energy:
        """Over all modules, of the sampled elements."""
        return self.total.energy()

    @property
    def elements(self) -> int:
        """All merged elements."""
        return sum(counts.elements for counts in self.tensors.values())

    @property
    def sampled(self) -> int:
        """Elements on sampled leaves."""
        return int(self.total.elements.sum())

    @cached_property
    def strata(self) -> tuple[Array, Array, Array]:
        """Elements [strata], changed [t, strata], both [p, strata]; a stratum is weights of one size in one module."""
        groups = self.groups.values()
        return (
            np.concatenate([group.elements for group in groups]),
            np.concatenate([group.changed for group in groups], axis=1),
            np.concatenate([group.both for group in groups], axis=1),
        )
