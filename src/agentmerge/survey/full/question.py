"""What a full probe counts beside Overlap, per layer and kind of module, in the same pass.

Indices: t and s are agents, p a pair of them in the order of `pairs`, e the biased float32 exponent of |base|, d one of
OUTPUTS, m one of MULTIPLIERS, k a number of agents less 1. An element counts as changed as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from agentmerge.kernels.arguments import MAGNITUDES, Sampled
from agentmerge.survey.answers import Answers, Counts, Form, ranged
from agentmerge.survey.full import definitions
from agentmerge.survey.full.definitions import EXPONENTS, MULTIPLIERS, pairs, sample_key
from agentmerge.survey.modules import Module, in_order, module_of
from agentmerge.survey.overlap import THRESHOLD
from agentmerge.survey.statistic import Statistic
from agentmerge.survey.sums import FIXED, fixed_sums, leaf_sums, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.kernels import Backend
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
class ProfileCounts(Counts):
    """Exact counts over the sampled leaves of a set of elements, int64, and `energies`: fixed sums, see sums.py."""

    forms: ClassVar[Mapping[str, Form]] = {
        **dict.fromkeys(("elements", "changed", "both"), ranged(EXPONENTS)),
        "magnitudes": ranged(MAGNITUDES),
        "energies": FIXED,
    }

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

    def encode(self) -> dict[str, Any]:
        """By field name, the long arrays behind the others and the energies last."""
        found = Counts.encode(self)
        return {name: found[name] for name in (*(n for n in found if n not in _LAST), *_LAST)}

    def energy(self) -> Energy:
        """The sums as float64."""
        agents, values = len(self.steps), np.array([value_of(total) for total in self.energies])
        first, second = np.split(values, [3 * agents])
        return Energy(*first.reshape(3, agents), *second.reshape(3, len(self.agree)))


_LAST = ("elements", "changed", "both", "magnitudes", "energies")
"""Fields in the order of the file format."""

Groups = dict[Module, ProfileCounts]


class GroupsOf(Answers[Groups]):
    """Answers are Counts by module."""

    def combine(self, left: Groups, right: Groups) -> Groups:
        """Sums of integers, group by group."""
        joined = dict(left)
        for module, counts in right.items():
            joined[module] = joined[module] + counts if module in joined else counts
        return joined

    def encode(self, answer: Groups) -> Any:
        """A list of groups in the order of the layers."""
        modules = in_order(list(answer))
        return [{"layer": module.layer, "kind": module.kind, **answer[module].encode()} for module in modules]

    def decode(self, data: Any) -> Groups:
        """What `encode` wrote."""
        return {Module(int(group["layer"]), group["kind"]): ProfileCounts.decode(group) for group in data}


@dataclass(frozen=True)
class Profile(Statistic[Groups]):
    """What a full probe counts, per layer and kind of module."""

    threshold: float = THRESHOLD
    sample: int = 1
    """Counts one of so many leaves of 2,048 elements, spread evenly: dear measures of large models; 1: all of them."""
    answers: ClassVar[Answers[Groups]] = GroupsOf()

    def observe(self, stack: Stack) -> Groups:
        """Count one stack; nothing where no leaf of it is sampled."""
        if not definitions.sampled(stack, self.sample).any():
            return {}
        counts, rows = definitions.count(stack, self.threshold, self.sample)
        return {module_of(stack.block.tensor.name): ProfileCounts(**counts, energies=fixed_sums(leaf_sums(rows)))}

    def kernel(self, stack: Stack, kernels: Backend) -> Groups | None:
        """The same in one compiled pass; of task vectors that a wrapping method made there is none."""
        if stack.tau is not None:
            return None
        tensor = stack.block.tensor.name
        sampled = Sampled(self.sample, sample_key(tensor), stack.block.start)
        if not sampled.leaves(stack.base.size).any():
            return {}
        found = kernels.full(stack, self.threshold, MULTIPLIERS, pairs(len(stack.agents)), sampled)
        if found is None:
            return None
        counts, leaves = found
        return {module_of(tensor): ProfileCounts(**counts, energies=fixed_sums(leaves[leaves.any(axis=1)]))}
