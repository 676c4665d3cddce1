"""Task vectors dropped at random and rescaled."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.arguments import WIDTH, rows, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Array, Stack


def drop(stack: Stack, keys: Sequence[tuple[int, int]], density: float) -> Array:
    """See Backend.drop."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size, start = stack.base.size, stack.block.start
    dropped = np.empty((len(stack.agents), size + -size % WIDTH), np.float32)
    last = ceil(density * 2.0**32) - 1
    for sources, elements, at in spans(stack.base, stack.agents, stack.tau):
        out = rows(dropped[:, at : at + elements])
        loops.drop(sources, elements, np.array(keys, np.int64), last, density, start + at, out)
    return dropped[:, :size]
