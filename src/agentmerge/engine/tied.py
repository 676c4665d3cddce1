"""Check, when the data is read, that a head which is said to be the embedding is equal to it. Knows no methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import DataError
from agentmerge.tensors import LEAF, Block, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.alike.heads import Tie

STEP = 512 * LEAF  # elements compared at a time


def check_ties(ties: Iterable[Tie]) -> None:
    """Compare head and embedding of every tie.

    Raises:
        DataError: a head that is not the embedding, although a config says so.
    """
    for tie in ties:
        head, embedding = (tie.source.specs[name] for name in (tie.pair.head, tie.pair.embedding))
        if head.shape != embedding.shape or not _equal(tie):
            raise DataError(
                f"{tie.pair.head}: in {tie.source.role} ({tie.source.text}) it differs from {tie.pair.embedding}, "
                "expected equal tensors, as a config.json ties the two. Set inputs.untie: true (--untie) to give the "
                "output a head of its own, starting from each source's embedding where it stores none, or correct the "
                "config."
            )


def _equal(tie: Tie) -> bool:
    head, embedding = (tie.source.specs[name] for name in (tie.pair.head, tie.pair.embedding))
    for start in range(0, embedding.elements, STEP):
        stop = min(start + STEP, embedding.elements)
        left, right = (tie.source.weights.read(Block(spec, start, stop)) for spec in (embedding, head))
        if left.dtype != right.dtype:
            left, right = as_float32(left), as_float32(right)
        if not np.array_equal(left.view(np.uint8), right.view(np.uint8)):
            return False
    return True
