"""Where agents differ from the base in a tensor that is copied, not merged. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.survey.answers import Answers, Integers
from agentmerge.survey.statistic import Statistic

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class Copied(Statistic[tuple[int, ...]]):
    """Per agent, the elements of a copied tensor whose bytes differ from the base's."""

    per_tensor: ClassVar[bool] = True
    answers: ClassVar[Answers[tuple[int, ...]]] = Integers()

    def observe(self, stack: Stack) -> tuple[int, ...]:
        """Count one stack of equal dtypes."""
        return tuple(differing(stack.base, agent) for agent in stack.agents)


def differing(base: Array, agent: Array) -> int:
    """How many elements differ in their bytes; all of them where the dtypes do."""
    if base.dtype != agent.dtype:
        return int(base.size)
    left, right = (array.view(np.uint8).reshape(array.size, -1) for array in (base, agent))
    return int((left != right).any(axis=1).sum())
