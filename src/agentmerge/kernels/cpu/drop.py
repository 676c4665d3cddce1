"""Task vectors dropped at random and rescaled."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.arguments import WIDTH, rows, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Array, Stack


def drop(stack: Stack, keys: Sequence[tuple[int, int]], densities: Sequence[float]) -> Array:
    """See Backend.drop."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size, start = stack.base.size, stack.block.start
    dropped = np.empty((len(stack.agents), size + -size % WIDTH), np.float32)
    draws, last = np.array(keys, np.int64), np.array([ceil(density * 2.0**32) - 1 for density in densities])
    kept = np.array(densities, np.float32)
    for sources, elements, at in spans(stack.base, stack.agents, stack.tau):
        out = rows(dropped[:, at : at + elements])
        loops.drop(sources, elements, draws, last, kept, start + at, out)
    return dropped[:, :size]
