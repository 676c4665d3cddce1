"""Task vectors of which only the magnitudes within bounds stay: what breadcrumbs makes, and RAM's `top`.

tau'[t, i] = factor[t] * tau[t, i]    where low[t] <= |tau[t, i]| <= high[t], else 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from agentmerge import kernels
from agentmerge.methods.cut import NOWHERE, Limits
from agentmerge.methods.making import Maker

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

    low: Limits = NOWHERE
    """The smallest magnitude that stays; none is 0."""
    high: Limits = NOWHERE
    """The largest one; none is inf."""
    factor: Limits = NOWHERE
    """What stays is multiplied by; none is 1."""

    @property
    def key(self) -> str:
        """Digests of the bounds."""
        return f"Trimmed {self.low.digest} {self.high.digest} {self.factor.digest}"

    def __call__(self, stack: Stack) -> Stack:
        """The stack with task vectors trimmed."""
        tensor, agents = stack.block.tensor.name, len(stack.agents)
        low, high, factor = (
            np.array(found.at(tensor, (usual,) * agents), np.float32)
            for found, usual in ((self.low, 0.0), (self.high, inf), (self.factor, 1.0))
        )
        if (backend := kernels.choose(stack)) is not None:
            return replace(stack, tau=backend.trim(stack, low, high, factor))
        return replace(stack, tau=trimmed(stack.task_vectors(), low, high, factor))
