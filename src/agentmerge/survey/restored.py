"""How many elements of an agent are the base's but for how they are stored. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.survey.answers import Answers, Integers
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import Stack, float32_bits

if TYPE_CHECKING:
    from agentmerge.kernels import Backend


@dataclass(frozen=True)
class Restored(Statistic[tuple[int, ...]]):
    """Per agent, the elements that were read as another number than the base's, and are the base's as stored there.

    Elements of which float32(stored[t]) and float32(agent[t]) differ in their bits.
    """

    answers: ClassVar[Answers[tuple[int, ...]]] = Integers()

    def observe(self, stack: Stack) -> tuple[int, ...]:
        """Count one stack."""
        pairs = zip(stack.agents, stack.stored or stack.agents, strict=True)
        return tuple(int(np.sum(float32_bits(agent) != float32_bits(stored))) for agent, stored in pairs)

    def kernel(self, stack: Stack, kernels: Backend) -> tuple[int, ...] | None:
        """The same by the loop that tells which agents differ from a base."""
        pairs = zip(stack.agents, stack.stored or stack.agents, strict=True)
        alone = [Stack(stack.block, agent, (stored,), ("",)) for agent, stored in pairs]
        return tuple(int(kernels.overlap(one, inf)[1][0]) for one in alone)
