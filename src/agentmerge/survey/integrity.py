"""Whether the numbers can be trusted: NaN, inf and a fingerprint of the bytes read. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agentmerge.kernels import cpu, folds
from agentmerge.randomness import stream_key
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import Array, Stack, as_float32

MIX = 0x9E3779B1
"""An odd constant that spreads a word's index over 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class IntegrityCounts:
    """Counts and fingerprints per source: the base first, then the agents."""

    nan: Array
    """int64 [1 + agents]"""
    inf: Array
    """int64 [1 + agents]"""
    fingerprint: Array
    """uint64 [1 + agents]"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntegrityCounts) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Integrity(Statistic[IntegrityCounts]):
    """NaN and inf counts, and a fingerprint of the stored bytes, of the base and of every agent.

    fingerprint = sum over i of word[i] * factor(i) mod 2^64: a multilinear hash of the tensor's little-endian 32-bit
    words (the last one padded with zeros). It tells a changed file from an unchanged one; it is no signature.
    """

    def observe(self, stack: Stack) -> IntegrityCounts:
        """Count and fingerprint one stack; a block starts at an even element, so its words do not straddle."""
        key, arrays = fingerprint_key(stack.block.tensor.name), (stack.base, *stack.agents)
        values = [as_float32(array) for array in arrays]
        return IntegrityCounts(
            np.array([np.isnan(value).sum() for value in values], np.int64),
            np.array([np.isinf(value).sum() for value in values], np.int64),
            np.array([fingerprint(array, key, stack.block.start) for array in arrays], np.uint64),
        )

    def fused(self, stack: Stack) -> IntegrityCounts | None:
        """The same in one compiled pass."""
        if not cpu.supports(stack.base, stack.agents):
            return None
        key = fingerprint_key(stack.block.tensor.name)
        return IntegrityCounts(*folds.integrity(stack.base, stack.agents, key, stack.block.start))

    def combine(self, left: IntegrityCounts, right: IntegrityCounts) -> IntegrityCounts:
        """Sums, of the fingerprints modulo 2^64."""
        return IntegrityCounts(left.nan + right.nan, left.inf + right.inf, left.fingerprint + right.fingerprint)

    def encode(self, answer: IntegrityCounts) -> dict[str, Any]:
        """Integers, and the fingerprints as 16 hexadecimal digits."""
        prints = [f"{int(value):016x}" for value in answer.fingerprint]
        return {"nan": answer.nan.tolist(), "inf": answer.inf.tolist(), "fingerprint": prints}

    def decode(self, data: dict[str, Any]) -> IntegrityCounts:
        """Back from JSON."""
        prints = np.array([int(text, 16) for text in data["fingerprint"]], np.uint64)
        return IntegrityCounts(np.array(data["nan"], np.int64), np.array(data["inf"], np.int64), prints)


def fingerprint_key(tensor: str) -> int:
    """The 32-bit key of a tensor's fingerprint."""
    return stream_key(0, "fingerprint", "", tensor)[0]


def fingerprint(array: Array, key: int, start: int) -> int:
    """Sum of word[i] * factor(i) mod 2^64 over the array's 32-bit words, i counted from the tensor's start.

    factor(i) = ((i + 1) * MIX mod 2^32 ^ key) | 1: odd, so that no change of a single word goes unseen.

    Args:
        array: [n], any dtype; start * itemsize is a multiple of 4.
        key: of the tensor.
        start: flat index of array[0] in its tensor.
    """
    data = np.ascontiguousarray(array).view(np.uint8)
    words = np.frombuffer(data.tobytes() + bytes(-data.size % 4), dtype="<u4").astype(np.uint64)
    first = start * array.dtype.itemsize // 4
    index = np.arange(first + 1, first + 1 + words.size, dtype=np.uint64)
    factor = ((index * np.uint64(MIX)) & np.uint64(0xFFFFFFFF) ^ np.uint64(key)) | np.uint64(1)
    return int(np.sum(words * factor, dtype=np.uint64))
