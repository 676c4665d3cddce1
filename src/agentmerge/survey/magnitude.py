"""The k-th smallest magnitude of each task vector, exactly, by two counts over its float32 bits. Knows no methods.

A finite float32 magnitude orders as its 31 bits do. `MagnitudeHigh` counts the upper 16 of them, which tells in which
bin the k-th magnitude lies; `MagnitudeLow` counts the lower 15 within that bin, which tells it to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.kernels.arguments import LOW_BITS
from agentmerge.survey.answers import Answers, Histogram, Histograms
from agentmerge.survey.by_tensor import EVERYWHERE, ByTensor
from agentmerge.survey.statistic import Statistic

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class MagnitudeHigh(Statistic[tuple[Histogram, ...]]):
    """Per agent, how many elements have each value of the upper 16 of the 31 bits of |tau|."""

    by_tensor: bool = False
    """Keep a histogram per tensor too."""
    answers: ClassVar[Answers[tuple[Histogram, ...]]] = Histograms()

    @property
    def per_tensor(self) -> bool:  # type: ignore[override]
        """As asked."""
        return self.by_tensor

    def observe(self, stack: Stack) -> tuple[Histogram, ...]:
        """Count one stack."""
        return tuple(histogram(bits >> LOW_BITS) for bits in magnitude_bits(stack.task_vectors()))

    def kernel(self, stack: Stack, kernels: Backend) -> tuple[Histogram, ...] | None:
        """The same in one compiled pass."""
        return tuple(map(sparse, kernels.magnitudes(stack)))


@dataclass(frozen=True)
class MagnitudeLow(Statistic[tuple[Histogram, ...]]):
    """Per agent, how many elements of its chosen bin have each value of the lower 15 bits of |tau|."""

    bins: ByTensor[int]
    """The bin that MagnitudeHigh chose for each agent; -1 for none."""
    answers: ClassVar[Answers[tuple[Histogram, ...]]] = Histograms()

    @property
    def per_tensor(self) -> bool:  # type: ignore[override]
        """Where the bins are."""
        return EVERYWHERE not in self.bins

    def observe(self, stack: Stack) -> tuple[Histogram, ...]:
        """Count one stack."""
        pairs = zip(magnitude_bits(stack.task_vectors()), self.bins.at(stack.block.tensor.name), strict=True)
        return tuple(histogram(bits[bits >> LOW_BITS == high] & ((1 << LOW_BITS) - 1)) for bits, high in pairs)

    def kernel(self, stack: Stack, kernels: Backend) -> tuple[Histogram, ...] | None:
        """The same in one compiled pass."""
        return tuple(map(sparse, kernels.magnitudes(stack, self.bins.at(stack.block.tensor.name))))


def magnitude_bits(task_vectors: Array) -> Array:
    """The 31 bits of |tau|, int64 [agents, n]."""
    return (np.ascontiguousarray(task_vectors).view(np.uint32) & np.uint32(0x7FFFFFFF)).astype(np.int64)


def histogram(values: Array) -> Histogram:
    """How often each value stands in int64 [n] of small non-negative numbers."""
    return sparse(np.bincount(values, minlength=1))


def sparse(counts: Array) -> Histogram:
    """The histogram of a count of every key from 0 on, int64 [keys]."""
    keys = counts.nonzero()[0]
    return keys.astype(np.int64), counts[keys].astype(np.int64)


def ranked(found: Histogram, k: int) -> tuple[int, int]:
    """The key that holds the k-th smallest element, k from 1, and its rank among the elements of that key."""
    keys, counts = found
    ends = np.cumsum(counts)
    place = int(np.searchsorted(ends, k))
    return int(keys[place]), k - int(ends[place] - counts[place])


def magnitude(high: int, low: int) -> float:
    """The float32 magnitude of these upper and lower bits."""
    return float(np.array([high << LOW_BITS | low], np.uint32).view(np.float32)[0])


def count_of(found: Histogram, key: int) -> int:
    """How many elements have exactly this key."""
    return int(found[1][found[0] == key].sum())
