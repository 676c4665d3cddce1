"""The task vectors of whole matrices, formed where they are computed with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.methods.arrays import Arrays
    from agentmerge.tensors import Array, Stack

ALL = slice(None)


class Vectors(Sequence[Any]):
    """The task vectors of one matrix that are not zero, float32 [out, in] each, formed when they are asked for.

    Of several matrices they are [count, out, in], and all of them were changed by the same agents.
    """

    def __init__(self, stack: Stack, arrays: Arrays, *, turned: bool) -> None:
        """See the class.

        Args:
            stack: whole matrices of base and agents.
            arrays: where they are formed.
            turned: whether they are stored [in, out].
        """
        self.stack, self.turned, self._arrays = stack, turned, arrays
        self.changed = changed_by(stack)
        """Whose task vectors these are."""
        count = stack.base.size // prod(self.shape)
        self._stored = (*((count,) if count > 1 else ()), *stack.block.tensor.shape[-2:])

    @cached_property
    def base(self) -> Any:
        """The base's numbers as they are stored, float32 [n]."""
        return self._arrays.wide(self._base.reshape(-1))

    @property
    def agents(self) -> int:
        """How many agents there are, those that changed nothing included."""
        return len(self.stack.agents)

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        rows, columns = self.stack.block.tensor.shape[-2:]
        return (columns, rows) if self.turned else (rows, columns)

    def __len__(self) -> int:
        return len(self.changed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.part(index)

    def part(self, index: int, rows: slice = ALL, columns: slice = ALL) -> Any:
        """A rectangle of one of them, float32 [..., rows, columns]; nothing else of it is formed."""
        at = (..., columns, rows) if self.turned else (..., rows, columns)
        wide, weight = self._arrays.wide, float(self.stack.weight()[self.changed[index]])
        tau = wide(self._agents[index][at])
        if self.stack.tau is None:
            tau = tau - wide(self._base[at])
        if weight != 1:
            tau = tau * weight
        return tau.swapaxes(-1, -2) if self.turned else tau

    @cached_property
    def _base(self) -> Any:
        return self._arrays.sent(self.stack.base).reshape(self._stored)

    @cached_property
    def _agents(self) -> list[Any]:
        """As stored, where they are computed with; what a wrapping method made in place of them."""
        given = self.stack.agents if self.stack.tau is None else self.stack.tau
        return [self._arrays.sent(given[t]).reshape(self._stored) for t in self.changed]


def changed_by(stack: Stack) -> tuple[int, ...]:
    """The agents with a weight that changed anything."""
    return tuple(t for t in range(len(stack.agents)) if stack.weight()[t] != 0 and moved(stack, t))


def moved(stack: Stack, t: int) -> bool:
    """Whether agent t changed anything."""
    if stack.tau is not None:
        return bool(stack.tau[t].any())
    agent = stack.agents[t]
    if agent.dtype == stack.base.dtype:
        return any(not np.array_equal(a, b) for a, b in zip(*map(_pieces, (agent, stack.base)), strict=True))
    return bool((as_float32(agent) != as_float32(stack.base)).any())


def _pieces(array: Array) -> list[Array]:
    """Parts of an array, so that the first difference is found soon."""
    return np.array_split(array, max(array.size // 65536, 1))
