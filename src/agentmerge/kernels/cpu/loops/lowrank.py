"""The compiled loop of sources/lowrank.py: a product of low rank whose sums run in the order of the rank.

A library's product sums in an order of its own, which blocks and machines change. Here a vector of sums stays in the
registers while the rank is gone through, so the order costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled
from agentmerge.kernels.cpu.loops.vectors import LANES, load_f32, store

if TYPE_CHECKING:
    from agentmerge.tensors import Array


@compiled(types.void(types.float32[:, ::1], types.int64, types.int64, types.float32, types.int64))
def product(left: Array, right: int, columns: int, scale: float, out: int) -> None:
    """Scale * sum over k of left[:, k] * right[k, :].

    Args:
        left: [rows, rank].
        right: the address of float32 [rank, columns].
        columns: a multiple of LANES.
        scale: of the sum.
        out: the address of float32 [rows, columns], written.
    """
    for j in range(0, columns, LANES):
        for i in range(left.shape[0]):
            total = load_f32(right + 4 * j) * left[i, 0]
            for k in range(1, left.shape[1]):
                total = total + load_f32(right + 4 * (k * columns + j)) * left[i, k]
            store(out + 4 * (i * columns + j), total * scale)
