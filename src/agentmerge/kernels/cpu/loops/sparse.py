"""The compiled loops of methods/sparse.py: products of matrices that are mostly zeros, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.signatures import DOUBLES, INTS

if TYPE_CHECKING:
    from agentmerge.tensors import Array


@inlined
def _places(row: Array, found: Array) -> int:
    """Where a row is not zero, into `found`; how many."""
    count = 0
    for j in range(row.size):
        found[count] = j
        count += row[j] != 0
    return count


@compiled(types.void(DOUBLES, DOUBLES, INTS))
def gram(matrix: Array, out: Array, found: Array) -> None:
    """Add matrix^T matrix to the lower triangle of `out` [columns, columns]; `found` is scratch [columns + 1]."""
    for i in range(matrix.shape[0]):
        count = _places(matrix[i], found)
        for a in range(count):
            value, place = matrix[i, found[a]], found[a]
            for b in range(a + 1):
                out[place, found[b]] += value * matrix[i, found[b]]


@compiled(types.void(DOUBLES, DOUBLES, DOUBLES, INTS))
def times(matrix: Array, right: Array, out: Array, found: Array) -> None:
    """Add matrix right to `out` [rows, n]; `found` is scratch [columns + 1]."""
    for i in range(matrix.shape[0]):
        count = _places(matrix[i], found)
        for a in range(count):
            value, place = matrix[i, found[a]], found[a]
            for j in range(right.shape[1]):
                out[i, j] += value * right[place, j]
