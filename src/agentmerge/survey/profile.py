"""What a full probe counts beside Overlap, per layer and kind of module, in the same pass. Knows no methods.

Indices: t and s are agents, p a pair of them in the order of `pairs`, e the biased float32 exponent of |base|, d one of
OUTPUTS, m one of MULTIPLIERS, k a number of agents less 1. An element counts as changed as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from agentmerge.kernels import profiles
from agentmerge.survey import profiling
from agentmerge.survey.fixed import fixed_sums, value_of
from agentmerge.survey.modules import Module, in_order, module_of
from agentmerge.survey.overlap import THRESHOLD
from agentmerge.survey.profiling import EXPONENTS, MAGNITUDES, MULTIPLIERS, pairs, sample_key
from agentmerge.survey.statistic import Statistic
from agentmerge.survey.sums import leaf_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Array, Stack


class Energy(NamedTuple):
    """Float64 sums; over the elements that both changed for a pair."""

    unique: Array
    """[t] tau^2 over its unique elements."""
    shared: Array
    """[t] tau^2 over its shared elements."""
    kept: Array
    """[t] tau times the mean of the changes, over its shared elements."""
    dot: Array
    """[p] tau[s] * tau[t]"""
    left: Array
    """[p] tau[s]^2"""
    right: Array
    """[p] tau[t]^2"""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileCounts:
    """Exact counts over the sampled leaves of a set of elements, int64; `energies` are integers, see fixed.py."""

    elements: Array
    """[e] elements by the exponent of |base|; 0 is zero and the subnormals."""
    changed: Array
    """[t, e]"""
    both: Array
    """[p, e] changed by both."""
    sampled: Array
    """[3, t] changed, unique and shared elements."""
    steps: Array
    """[t, class] of the changed: by how many numbers of the base's dtype the agent's lies from it; see STEPS."""
    agree: Array
    """[p] changed by both, in the same direction."""
    equal: Array
    """[p] changed by both, by the same amount."""
    conflict: Array
    """[t] shared elements that some agents raised and others lowered."""
    cancelled: Array
    """[t] shared elements whose mean change is not beyond the threshold."""
    magnitudes: Array
    """[t, class] changed elements by |tau|; see MAGNITUDES."""
    lost: Array
    """[method, d, region, t] changed (region 0) or unique (1) elements that SCALED_DOWN moves, stored as the base's."""
    survived: Array
    """[d, m, t] unique elements stored as another number than the agent's own would be, once multiplied."""
    energies: tuple[int, ...]
    """The rows of Energy after each other."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProfileCounts) and all(
            np.array_equal(np.asarray(getattr(self, f.name)), np.asarray(getattr(other, f.name))) for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Self) -> ProfileCounts:
        return self.sum([self, other])

    @classmethod
    def sum(cls, counts: Sequence[Self]) -> ProfileCounts:
        """Of one or more."""
        summed = {name: reduce(np.add, [getattr(one, name) for one in counts]) for name in _COUNTS}
        energies = tuple(map(sum, zip(*(one.energies for one in counts), strict=True)))
        return ProfileCounts(**summed, energies=energies)

    def energy(self) -> Energy:
        """The sums as float64."""
        agents, values = len(self.steps), np.array([value_of(total) for total in self.energies])
        first, second = np.split(values, [3 * agents])
        return Energy(*first.reshape(3, agents), *second.reshape(3, len(self.agree)))


_COUNTS = tuple(f.name for f in fields(ProfileCounts) if f.name != "energies")
_RANGES = {"elements": EXPONENTS, "changed": EXPONENTS, "both": EXPONENTS, "magnitudes": MAGNITUDES}
"""Long arrays, of which only the range that occurs is written."""

Groups = dict[Module, ProfileCounts]


@dataclass(frozen=True)
class Profile(Statistic[Groups]):
    """What a full probe counts, per layer and kind of module."""

    threshold: float = THRESHOLD
    sample: int = 1
    """Counts one of so many leaves of 2,048 elements, spread evenly: dear measures of large models; 1: all of them."""

    def observe(self, stack: Stack) -> Groups:
        """Count one stack; nothing where no leaf of it is sampled."""
        if not profiling.sampled(stack, self.sample).any():
            return {}
        counts, rows = profiling.count(stack, self.threshold, self.sample)
        return {module_of(stack.block.tensor.name): ProfileCounts(**counts, energies=fixed_sums(leaf_sums(rows)))}

    def fused(self, stack: Stack) -> Groups | None:
        """The same in one compiled pass."""
        if not profiles.supports(stack.base, stack.agents) or stack.tau is not None:
            return None
        tensor, start = stack.block.tensor.name, stack.block.start
        sample = self.sample, sample_key(tensor), start
        if not profiles.sampled_leaves(stack.base.size, *sample).any():
            return {}
        settings = self.threshold, MULTIPLIERS, pairs(len(stack.agents)), *sample
        counts, leaves = profiles.count(stack.base, stack.agents, *settings)
        return {module_of(tensor): ProfileCounts(**counts, energies=fixed_sums(leaves[leaves.any(axis=1)]))}

    def combine(self, left: Groups, right: Groups) -> Groups:
        """Sums of integers, group by group."""
        joined = dict(left)
        for module, counts in right.items():
            joined[module] = joined[module] + counts if module in joined else counts
        return joined

    def encode(self, answer: Groups) -> list[dict[str, Any]]:
        """Integers; of the exponents only the range that occurs."""
        return [_encode(module, answer[module]) for module in in_order(list(answer))]

    def decode(self, data: Any) -> Groups:
        """Back from plain integers."""
        return {Module(int(group["layer"]), group["kind"]): _decode(group) for group in data}


def _encode(module: Module, counts: ProfileCounts) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(counts, name).tolist() for name in _COUNTS if name not in _RANGES}
    found |= {name: _shortened(getattr(counts, name)) for name in _RANGES}
    return {"layer": module.layer, "kind": module.kind, **found, "energies": list(counts.energies)}


def _decode(group: dict[str, Any]) -> ProfileCounts:
    arrays = {name: np.array(group[name], np.int64) for name in _COUNTS if name not in _RANGES}
    arrays |= {name: _lengthened(group[name], size) for name, size in _RANGES.items()}
    return ProfileCounts(**arrays, energies=tuple(map(int, group["energies"])))


def _shortened(array: Array) -> dict[str, Any]:
    """The last axis from the first to the last column that holds anything."""
    used = np.flatnonzero(array.reshape(-1, array.shape[-1]).any(axis=0))
    first, stop = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    counts = array[..., first:stop].tolist()
    return {"first": first, "counts": counts} | ({"rows": 0} if array.ndim == 2 and not len(array) else {})


def _lengthened(data: dict[str, Any], size: int) -> Array:
    counts, first = data["counts"], int(data["first"])
    if counts == [] and data.get("rows") == 0:  # a list without rows does not tell how long they would be
        return np.zeros((0, size), np.int64)
    found = np.array(counts, np.int64)
    array = np.zeros((*found.shape[:-1], size), np.int64)
    array[..., first : first + found.shape[-1]] = found
    return array
