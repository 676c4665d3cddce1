"""Task vectors of which only the magnitudes within bounds stay: what breadcrumbs makes, and RAM's `top`.

tau'[t, i] = factor[t] * tau[t, i]    where low[t] <= |tau[t, i]| <= high[t], else 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from agentmerge import kernels
from agentmerge.methods.cut import Limits, limits_at
from agentmerge.methods.making import Maker
from agentmerge.survey.statistic import digested

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Stack


def trimmed(tau: Array, low: Array, high: Array, factor: Array) -> Array:
    """The formula above, float32 [agents, n].

    Args:
        tau: float32 [agents, n].
        low: float32 [agents].
        high: float32 [agents].
        factor: float32 [agents].
    """
    size = np.abs(tau)
    inside = (size >= low[:, None]) & (size <= high[:, None])
    return np.where(inside, tau * factor[:, None], np.float32(0))


@dataclass(frozen=True)
class Trim(Maker):
    """Leaves what lies within bounds, by tensor or everywhere."""

    low: Limits = ()
    """The smallest magnitude that stays; none is 0."""
    high: Limits = ()
    """The largest one; none is inf."""
    factor: Limits = ()
    """What stays is multiplied by; none is 1."""

    @property
    def key(self) -> str:
        """A digest of the bounds, of which a model has hundreds."""
        return digested("Trimmed", (self.low, self.high, self.factor))

    def __call__(self, stack: Stack) -> Stack:
        """The stack with task vectors trimmed."""
        tensor, agents = stack.block.tensor.name, len(stack.agents)
        low, high, factor = (
            np.array(limits_at(found, tensor) or (usual,) * agents, np.float32)
            for found, usual in zip(self._found, (0.0, inf, 1.0), strict=True)
        )
        if (backend := kernels.choose(stack)) is not None:
            return replace(stack, tau=backend.trim(stack, low, high, factor))
        return replace(stack, tau=trimmed(stack.task_vectors(), low, high, factor))

    @cached_property
    def _found(self) -> tuple[dict[str, tuple[float, ...]], ...]:
        return dict(self.low), dict(self.high), dict(self.factor)
