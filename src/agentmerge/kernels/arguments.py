"""What compiled loops are called with: addresses and dtype codes of padded arrays. Imports no numba.

Here are also the few numbers that a loop and its definition share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentmerge.tensors import DTYPES, LEAF, MIX, Array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BF16, F16, F32 = range(3)
"""Dtype codes, as compiled code sees them."""
CODES = {DTYPES["BF16"]: BF16, DTYPES["F16"]: F16, DTYPES["F32"]: F32}
WIDTH = 64
"""Compiled loops work on so many elements, or multiples of them; the lanes of a vector divide it."""
LOW_BITS = 15
"""A magnitude's 31 bits are ranked by the upper 16 of them, then by the lower 15."""
MAGNITUDES, MAGNITUDE_SHIFT = 4096, 19
"""|tau| by its float32 exponent and the upper 4 bits of its mantissa: a class is 6 % wide."""


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
    """Addresses of what else a loop reads: the importance of every agent, or one merge."""
    extra_codes: Array


class Sums(NamedTuple):
    """Where float64 sums over leaves go."""

    running: Array
    """Zeros [rows, RUNNING]."""
    places: Array
    """The address of each row of them, int64 [rows]."""
    leaves: Array
    """[leaves, rows], written."""


class Scratch(NamedTuple):
    """Memory of one call, as loops allocate nothing: they run without numba's reference counts."""

    vectors: Array
    """float32 [agents, WIDTH]"""
    rows: Array
    """The address of each of them, int64 [agents]: for a vector of each agent's task vector."""
    changed: Array
    """uint64 [agents]: for a mask word of each agent."""

    @classmethod
    def of(cls, agents: int) -> Scratch:
        """For so many agents."""
        vectors = np.zeros((agents, WIDTH), np.float32)
        return cls(vectors, rows(vectors), np.zeros(agents, np.uint64))


class Sampled(NamedTuple):
    """Which leaves of a block are counted: one of so many, spread evenly; see survey.full.definitions.sampled."""

    one_of: int
    key: int
    """32 bits, of the tensor."""
    start: int
    """Flat index of the block's first element in its tensor, a multiple of LEAF."""

    def leaves(self, elements: int) -> Array:
        """Whether each leaf of a block of so many elements is counted, bool [leaves]."""
        leaves = self.start // LEAF + np.arange(-(-elements // LEAF))
        chosen: Array = (leaves * MIX + self.key) % 2**32 < 2**32 // self.one_of
        return chosen


_Groups = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]


def spans(
    base: Array, agents: Sequence[Array], tau: Array | None = None, extra: Sequence[Array] = (), multiple: int = WIDTH
) -> Iterator[tuple[Sources, int, int]]:
    """The whole multiples of the arrays, then the rest padded with zeros: sources, their elements, their place.

    Args:
        base: [n], BF16, F16 or F32, contiguous; the others too.
        agents: [n] each.
        tau: float32 [agents, n], or None.
        extra: [n] each.
        multiple: of WIDTH; where the rest may begin.
    """
    groups: _Groups = ((base, *agents), () if tau is None else tuple(tau), tuple(extra))
    check(*(array for group in groups for array in group))
    whole = base.size - base.size % multiple
    if whole:
        yield _sources(groups), whole, 0
    if rest := base.size - whole:
        zeros = -rest % WIDTH
        read, taus, beside = (tuple(_padded(array[whole:], zeros) for array in group) for group in groups)
        yield _sources((read, taus, beside)), rest + zeros, whole


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
                f" bfloat16, float16 or float32 {list(arrays[0].shape[:1])}. Ask `choose` first."
            )


def address(array: Array) -> int:
    """Where the array's data lie."""
    return int(array.__array_interface__["data"][0])


def rows(array: Array) -> Array:
    """The address of each row of a matrix, int64 [rows]."""
    return address(array) + array.strides[0] * np.arange(len(array))
