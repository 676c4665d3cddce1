"""A product of low rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.arguments import WIDTH, address

if TYPE_CHECKING:
    from agentmerge.tensors import Array


def low_rank(left: Array, right: Array, scale: float) -> Array:
    """See Backend.low_rank."""
    from agentmerge.kernels.cpu.loops import lowrank as loops

    (rows, rank), columns = left.shape, right.shape[1]
    wide = columns + -columns % WIDTH
    padded = np.zeros((rank, wide), np.float32)
    padded[:, :columns] = right
    out = np.empty((rows, wide), np.float32)
    loops.product(np.ascontiguousarray(left), address(padded), wide, np.float32(scale), address(out))
    return out[:, :columns]
