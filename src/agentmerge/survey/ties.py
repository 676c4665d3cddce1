"""Whether an output head that is said to be the embedding is equal to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.tensors import Stack


@dataclass(frozen=True)
class HeadDiffers(Statistic[int]):
    """Elements of the head, the one agent of the stack, that differ from the embedding, its base.

    Bytes are compared; numbers as float32 where the two are stored in different dtypes.
    """

    def observe(self, stack: Stack) -> int:
        """Count one stack."""
        embedding, (head,) = stack.base, stack.agents
        if embedding.dtype != head.dtype:
            embedding, head = as_float32(embedding), as_float32(head)
        left, right = (array.view(np.uint8).reshape(array.size, -1) for array in (embedding, head))
        return int((left != right).any(axis=1).sum())

    def combine(self, left: int, right: int) -> int:
        """Their sum."""
        return left + right

    def encode(self, answer: int) -> int:
        """The number itself."""
        return answer

    def decode(self, data: Any) -> int:
        """The number itself."""
        return int(data)
