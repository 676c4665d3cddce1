"""Whether an output head that is said to be the embedding is equal to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

from agentmerge.survey.answers import Answers, Integer
from agentmerge.survey.copied import differing
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.tensors import Stack


@dataclass(frozen=True)
class HeadDiffers(Statistic[int]):
    """How many elements of a head differ from the embedding's; asked of stacks (embedding, (head,)).

    Elements differ in their stored bytes. Where the dtypes differ, in the bytes of their float32 numbers, the
    embedding's rounded to the head's dtype: a head that is the embedding in a coarser one is still the embedding.
    """

    answers: ClassVar[Answers[int]] = Integer()

    def observe(self, stack: Stack) -> int:
        """Count one stack."""
        embedding, (head,) = stack.base, stack.agents
        if embedding.dtype != head.dtype:
            embedding, head = as_float32(as_float32(embedding).astype(head.dtype)), as_float32(head)
        return differing(embedding, head)

    def kernel(self, stack: Stack, kernels: Backend) -> int | None:
        """The same in one compiled pass, which compares float32 bits: equal where the stored bits are."""
        if stack.base.dtype != stack.agents[0].dtype:
            return None
        _, different = kernels.overlap(stack, inf)
        return int(different[0])
