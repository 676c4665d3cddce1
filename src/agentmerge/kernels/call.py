"""How Python calls compiled code: addresses and dtype codes of padded arrays, and settings. Imports no numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentmerge.tensors import DTYPES, Array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GIVEN, STRETCHED, LINEAR, TIES, FISHER, REGION, RAM, RAM_FIELDS = range(8)
"""Rules. GIVEN takes a merge that someone else made, STRETCHED scales its distance from the base (calibrate).

RAM is the paper's, of the agents' own task vectors; RAM_FIELDS is all else that methods/ram.py can do."""
MEAN, ELECT, IMPORTANCE = range(3)
"""Choices of RAM_FIELDS: what becomes of a shared element, see methods/shared.py; a sum is a mean of power 0."""
UNIQUE, SHARED, CHANGED = range(3)
"""Choices of REGION."""

CODES = {DTYPES[name]: code for code, name in enumerate(("BF16", "F16", "F32"))}
"""The codes of floats.py, which would import numba."""
LANES = 64
"""A multiple of vectors.LANES, which would import numba."""

_NONE = np.zeros(0, np.float32)


class Rule(NamedTuple):
    """A method and its settings, see methods; what a rule does not use stays as it is here."""

    code: int
    choice: int = 0
    agent: int = 0
    """REGION: whose changes."""
    threshold: float = 0.0
    """Of a change, also for what is observed of the rounding."""
    scale: float = 1.0
    divisor: float = 1.0
    floor: float = 0.0
    zero: float = 0.0
    """TIES: the sign where the elected sum is 0."""
    power: float = 1.0
    """RAM_FIELDS: of the count that a mean divides by."""
    weight: Array = _NONE
    """float32 [agents]; FISHER: the coefficients."""
    limit: Array = _NONE
    """float32 [agents]; TIES: the smallest kept magnitudes, [0] for no trim. RAM: lambda."""
    table: Array = _NONE
    """float32 [1 + agents]; RAM_FIELDS: count^power."""

    def typed(self) -> Rule:
        """The same in the types that compiled code takes."""
        types: tuple[Callable[[Any], Any], ...] = (int,) * 3 + (np.float32,) * 6 + (_floats,) * 3
        return Rule._make(of(value) for of, value in zip(types, self, strict=True))


def _floats(values: Array) -> Array:
    return np.array(values, np.float32)


class Destination(NamedTuple):
    """Where results go and how they are rounded."""

    address: int
    code: int
    """Of the output dtype."""
    exact: bool
    """Whether the output dtype holds every input as it is."""
    draw: bool
    """Round stochastically, by this Philox key; `start` is the flat index of the first element in its tensor."""
    key0: int
    key1: int
    start: int


class Sources(NamedTuple):
    """What is read, int64 arrays all; the arrays they point to must outlive them."""

    addresses: Array
    """Of the base and the agents, [1 + agents]."""
    codes: Array
    """Their dtypes."""
    taus: Array
    """Addresses of task vectors that a wrapping method made, float32, [agents]; [0]: they are the agents' own."""
    extra: Array
    """Addresses of what else a rule reads: the importance of every agent, or one merge."""
    extra_codes: Array


_Groups = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]


def pieces(
    base: Array, agents: Sequence[Array], tau: Array | None = None, extra: Sequence[Array] = (), multiple: int = LANES
) -> Iterator[tuple[Sources, int, int]]:
    """The whole multiples of the arrays, then the rest padded with zeros: sources, their elements, their place.

    Args:
        base: [n], BF16, F16 or F32, contiguous; the others too.
        agents: [n] each.
        tau: float32 [agents, n], or None.
        extra: [n] each.
        multiple: of LANES; where the rest may begin.
    """
    groups: _Groups = ((base, *agents), () if tau is None else tuple(tau), tuple(extra))
    check(*(array for group in groups for array in group))
    whole = base.size - base.size % multiple
    if whole:
        yield _sources(groups), whole, 0
    if rest := base.size - whole:
        padded = -rest % LANES
        read, taus, extra = (tuple(_padded(array[whole:], padded) for array in group) for group in groups)
        yield _sources((read, taus, extra)), rest + padded, whole


def _padded(array: Array, zeros: int) -> Array:
    return np.concatenate([array, np.zeros(zeros, array.dtype)])


def _sources(groups: _Groups) -> Sources:
    (addresses, codes), (taus, _), (extra, extra_codes) = (
        (np.array([address(a) for a in group], np.int64), np.array([CODES[a.dtype] for a in group], np.int64))
        for group in groups
    )
    return Sources(addresses, codes, taus, extra, extra_codes)


def check(*arrays: Array) -> None:
    """Compiled code works on raw addresses, so what it reads and writes must be there."""
    for array in arrays:
        if (
            array.shape != arrays[0].shape
            or array.ndim != 1
            or not array.flags.c_contiguous
            or array.dtype not in CODES
        ):
            raise ValueError(
                f"kernels: found {array.dtype} {list(array.shape)} with strides {array.strides}, expected contiguous"
                f" bfloat16, float16 or float32 {list(arrays[0].shape[:1])}. Ask `supports` first."
            )


def address(array: Array) -> int:
    """Where the array's data lie."""
    return int(array.__array_interface__["data"][0])


def rows(array: Array) -> Array:
    """The address of each row of a matrix, int64 [rows]."""
    return address(array) + array.strides[0] * np.arange(len(array))
