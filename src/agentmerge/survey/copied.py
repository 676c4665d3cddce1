"""Where agents differ from the base in a tensor that is copied, not merged. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentmerge.survey.statistic import Statistic

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class Copied(Statistic[tuple[int, ...]]):
    """Per agent, the elements of a copied tensor whose bytes differ from the base's."""

    per_tensor: ClassVar[bool] = True

    def observe(self, stack: Stack) -> tuple[int, ...]:
        """Count one stack of equal dtypes."""
        return tuple(_differing(stack.base, agent) for agent in stack.agents)

    def combine(self, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        """Sums."""
        return tuple(a + b for a, b in zip(left, right, strict=True))

    def encode(self, answer: tuple[int, ...]) -> list[int]:
        """Plain integers."""
        return list(answer)

    def decode(self, data: Any) -> tuple[int, ...]:
        """Back from plain integers."""
        return tuple(int(count) for count in data)


def _differing(base: Array, agent: Array) -> int:
    if base.dtype != agent.dtype:
        return int(base.size)
    left, right = (array.view(np.uint8).reshape(array.size, -1) for array in (base, agent))
    return int((left != right).any(axis=1).sum())
