"""The settings of every compiled merge, one NamedTuple per formula, the same for every backend. Imports no numba.

A setting is an int, a float or a float32 array; loops get them as int64, float32 and float32 [...]. `threshold` is
that of a change, in every formula, as the rounding is counted of what the agents changed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from agentmerge.tensors import Array

MEAN, ELECT, IMPORTANCE, WINNER, LARGEST = range(5)
"""What becomes of a shared element, see methods/shared.py; a sum is a mean of power 0."""
UNIQUE, SHARED, CHANGED = range(3)
"""The regions of an agent's changes."""

S = TypeVar("S", bound=tuple[Any, ...])


class Given(NamedTuple):
    """A merge that someone else made, float32: the kernel's only extra array."""

    threshold: float


class Onto(NamedTuple):
    """A merge put onto another checkpoint (engine/onto.py); extra: the merge, float32, and the checkpoint."""

    threshold: float


class Stretched(NamedTuple):
    """The same, its distance from the base scaled (methods/calibrate.py)."""

    threshold: float
    scale: float


class Linear(NamedTuple):
    """base + sum of weight * tau * scale / divisor (methods/task_arithmetic.py)."""

    threshold: float
    weight: Array
    scale: float = 1.0
    divisor: float = 1.0


class Ties(NamedTuple):
    """methods/ties.py."""

    threshold: float
    weight: Array
    limit: Array
    """The smallest kept magnitude of each agent; [0] for no trim."""
    zero: float
    """The sign where the elected sum is 0."""
    scale: float
    mean: int = 1
    """0: the sum of those that agree, not divided by their weights."""


class Sce(NamedTuple):
    """methods/sce.py."""

    threshold: float
    weight: Array
    """Of each agent in the vote."""
    share: Array
    """Of each agent in the mean."""
    limit: float
    """The smallest variance that stays; 0 where all stay."""
    floor: float
    """The least that is divided by."""
    scale: float


class Nearswap(NamedTuple):
    """methods/nearswap.py."""

    threshold: float
    weight: float
    t: float


class Fisher(NamedTuple):
    """methods/fisher.py; extra: the importance of every agent."""

    threshold: float
    coefficients: Array
    scale: float
    floor: float


class Region(NamedTuple):
    """methods/region.py."""

    threshold: float
    agent: int
    """Whose changes."""
    keep: int
    """UNIQUE, SHARED or CHANGED."""
    factor: float


class Ram(NamedTuple):
    """The paper's RAM, of the agents' own task vectors (methods/ram.py)."""

    threshold: float
    scale: Array
    """lambda, [agents]."""
    weight: Array


class Shared(NamedTuple):
    """What becomes of a shared element (methods/shared.py)."""

    choice: int
    """MEAN, ELECT, IMPORTANCE, WINNER or LARGEST."""
    power: float
    """Of the count that a mean divides by."""
    weight: Array
    table: Array
    """count^power, [1 + agents]."""


class RamExtended(NamedTuple):
    """All else that methods/ram.py can do; extra: the importance of every agent, where `shared` weighs by it."""

    threshold: float
    scale: Array
    """lambda, [agents]."""
    shared: Shared


def typed(settings: S) -> S:
    """The same in the types that compiled code takes."""
    made: Any = type(settings)
    return made._make(_typed(kind, value) for kind, value in zip(kinds_of(made), settings, strict=True))  # type: ignore[no-any-return]


@cache
def kinds_of(settings: type[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The declared type of every setting: int, float, Array or another NamedTuple."""
    return tuple(get_type_hints(settings).values())


def _typed(kind: Any, value: Any) -> Any:
    if kind == Array:
        return np.array(value, np.float32)
    return {int: int, float: np.float32}.get(kind, typed)(value)
