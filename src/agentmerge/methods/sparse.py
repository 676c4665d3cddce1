"""Products of task vectors that are mostly zeros, in float64: a row costs what is in it.

A sum runs over the rows of the matrix, or over the places of a row, in their order. So the compiled loops equal the
definitions here bit for bit: what is zero adds zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge import kernels
from agentmerge.kernels import cpu

if TYPE_CHECKING:
    from agentmerge.tensors import Array

DENSITY = 0.06
"""Up to this share of elements that are not zero, a loop over them is faster than a BLAS over all on one processor."""


def is_sparse(matrix: Array) -> bool:
    """Whether the loops here are worth it."""
    return bool(np.count_nonzero(matrix) <= DENSITY * matrix.size)


def gram(matrix: Array) -> Array:
    """matrix^T matrix, float64 [columns, columns]."""
    lower = cpu.gram(matrix) if kernels.compiling() else _gram(matrix)
    lower += np.tril(lower, -1).T
    return lower


def times(matrix: Array, right: Array) -> Array:
    """Matrix right, float64 [rows, n]."""
    return cpu.times(matrix, right) if kernels.compiling() else _times(matrix, right)


def _gram(matrix: Array) -> Array:
    out = np.zeros((matrix.shape[1],) * 2)
    for row in matrix:
        out += np.tril(np.outer(row, row))
    return out


def _times(matrix: Array, right: Array) -> Array:
    out = np.zeros((matrix.shape[0], right.shape[1]))
    for place in range(matrix.shape[1]):
        out += np.outer(matrix[:, place], right[place])
    return out
