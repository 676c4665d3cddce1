"""Whether the numbers can be trusted: NaN, inf and a fingerprint of the bytes read. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentmerge.randomness import stream_key
from agentmerge.survey.answers import HEXADECIMAL, Answers, Counts, CountsOf, Form
from agentmerge.survey.common import Common, common
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import MIX, Array, Stack, as_float32

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.kernels import Backend
    from agentmerge.survey.statistic import Foldable


@dataclass(frozen=True, slots=True, eq=False)
class IntegrityCounts(Counts):
    """Counts and fingerprints per source: the base first, then the agents."""

    forms: ClassVar[Mapping[str, Form]] = {"fingerprint": HEXADECIMAL}

    nan: Array
    """int64 [1 + agents]"""
    inf: Array
    """int64 [1 + agents]"""
    fingerprint: Array
    """uint64 [1 + agents]"""

    def read_as(self, stack: Stack, kernels: Backend) -> IntegrityCounts:
        """These of a stack's agents, with the fingerprints of what was read of them."""
        if not stack.stored:
            return self
        first, *more = stack.stored
        prints = kernels.integrity(Stack(stack.block, first, tuple(more), ()), fingerprint_key(stack.block.tensor.name))
        return replace(self, fingerprint=np.concatenate([self.fingerprint[:1], prints[2]]))


@dataclass(frozen=True)
class Integrity(Statistic[IntegrityCounts]):
    """NaN and inf counts, and a fingerprint of the stored bytes, of the base and of every agent.

    fingerprint = sum over i of word[i] * factor(i) mod 2^64: a multilinear hash of the tensor's little-endian 32-bit
    words (the last one padded with zeros). It tells a changed file from an unchanged one; it is no signature. NaN and
    inf are counted of what is merged: a number too large for an agent's dtype that is the base's is none.
    """

    answers: ClassVar[Answers[IntegrityCounts]] = CountsOf(IntegrityCounts)

    def observe(self, stack: Stack) -> IntegrityCounts:
        """Count and fingerprint one stack; a block starts at an even element, so its words do not straddle."""
        key, read = fingerprint_key(stack.block.tensor.name), (stack.base, *(stack.stored or stack.agents))
        values = [as_float32(array) for array in (stack.base, *stack.agents)]
        return IntegrityCounts(
            np.array([np.isnan(value).sum() for value in values], np.int64),
            np.array([np.isinf(value).sum() for value in values], np.int64),
            np.array([fingerprint(array, key, stack.block.start) for array in read], np.uint64),
        )

    def kernel(self, stack: Stack, kernels: Backend) -> IntegrityCounts | None:
        """The same in one compiled pass."""
        key = fingerprint_key(stack.block.tensor.name)
        return IntegrityCounts(*kernels.integrity(stack, key)).read_as(stack, kernels)

    def kernel_with(self, asked: Sequence[Statistic[Any]], stack: Stack, kernels: Backend) -> dict[Foldable[Any], Any]:
        """Together with Common, where that is asked too."""
        answer = self.kernel(stack, kernels)
        if answer is None:
            return {}
        return {self: answer} | ({Common(): common(stack, answer)} if Common() in asked else {})


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
