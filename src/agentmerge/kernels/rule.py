"""What a compiled map is told to do: numbers that Python writes and compiled code reads. Imports no numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from agentmerge.tensors import Array

GIVEN, STRETCHED, LINEAR, TIES, FISHER, REGION, RAM, PAPER = range(8)
"""Rules. GIVEN takes a merge that someone else made, STRETCHED scales its distance from the base (calibrate)."""
MEAN, ELECT, IMPORTANCE = range(3)
"""Choices of RAM: what becomes of a shared element, see methods/shared.py; a sum is a mean of power 0."""
UNIQUE, SHARED, CHANGED = range(3)
"""Choices of REGION."""

_NONE = np.zeros(0, np.float32)


class Rule(NamedTuple):
    """A method and its settings, see methods; what a rule does not use stays as it is here."""

    code: int
    choice: int = 0
    agent: int = 0
    """REGION: whose changes."""
    threshold: float = 0.0
    scale: float = 1.0
    divisor: float = 1.0
    floor: float = 0.0
    zero: float = 0.0
    """TIES: the sign where the elected sum is 0."""
    power: float = 1.0
    """RAM: of the count that a mean divides by."""
    weight: Array = _NONE
    """float32 [agents]; FISHER: the coefficients."""
    limit: Array = _NONE
    """float32 [agents]; TIES: the smallest kept magnitudes, or [0] for no trim. RAM: lambda."""
    table: Array = _NONE
    """float32 [1 + agents]; RAM: count^power."""


class Target(NamedTuple):
    """Where results go and how they are rounded."""

    address: int
    code: int
    """Of the output dtype, see floats.py."""
    exact: bool
    """Whether the output dtype holds every input as it is."""
    draw: bool
    """Round stochastically, by this Philox key; `start` is the flat index of the first element in its tensor."""
    key0: int
    key1: int
    start: int
