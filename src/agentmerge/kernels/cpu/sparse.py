"""Products of matrices that are mostly zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from agentmerge.tensors import Array


def gram(matrix: Array) -> Array:
    """See Backend.gram."""
    from agentmerge.kernels.cpu.loops import sparse as loops

    columns = matrix.shape[1]
    out = np.zeros((columns, columns))
    loops.gram(np.ascontiguousarray(matrix), out, np.empty(columns + 1, np.int64))
    return out


def times(matrix: Array, right: Array) -> Array:
    """See Backend.times."""
    from agentmerge.kernels.cpu.loops import sparse as loops

    out = np.zeros((matrix.shape[0], right.shape[1]))
    loops.times(np.ascontiguousarray(matrix), np.ascontiguousarray(right), out, np.empty(len(right) + 1, np.int64))
    return out
