"""The few leading singular triples of a large matrix: Golub-Kahan-Lanczos, in float64, over numpy or torch arrays.

From one fixed vector, with every new vector made orthogonal to all before it, so nothing is random and nothing is found
twice. Up to a side of `GRAM` it runs on the Gram matrix, whose products cost less than reading the matrix in each step.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.methods import sparse
from agentmerge.methods.spectra import EPS, Factors, eigen, eigen_bytes, eigen_flop, gram, leading, other_side

if TYPE_CHECKING:
    from agentmerge.methods.arrays import Arrays
    from agentmerge.tensors import Array

STEPS = 120.0
"""Products with a vector from either side that Lanczos takes for a leading pair, about, where nothing sticks out."""
READING = 64.0
"""FLOP of a product of matrices that take as long as reading an element in a product with a vector."""
ALL = 128
"""Up to this side all eigenvectors are as cheap as the first few."""
GRAM = 4096
"""Up to this side the Gram matrix is cheaper than reading the matrix twice in every step of Lanczos."""
TOLERANCE = 1e-9
"""Of a leading pair: norm(A^T u - s v) as a share of the largest s."""


def first(matrix: Any, count: int, arrays: Arrays, tolerance: float = TOLERANCE) -> Factors:
    """The `count` leading triples of a matrix [m, n], float64, where they are few: the rest is not computed.

    Of a tie between the last of them and the next one, either may come.
    """
    side = min(matrix.shape)
    count = min(count, side)
    if side <= ALL or 8 * count >= side:
        return leading(matrix, count, arrays)
    if side > GRAM and not _is_sparse(matrix):
        return golub_kahan(matrix, count, arrays, tolerance) or leading(matrix, count, arrays)
    system = gram(matrix, arrays)
    found = golub_kahan(system, count, arrays, tolerance)
    if found is None:
        return leading(matrix, count, arrays, eigen(system, arrays))
    squares = arrays.xp.where(found.values > side * EPS * found.values[0], found.values, 0 * found.values)
    return other_side(matrix, squares, found.right, arrays)


def _is_sparse(matrix: Any) -> bool:
    return isinstance(matrix, np.ndarray) and sparse.is_sparse(matrix)


def golub_kahan(matrix: Any, count: int, arrays: Arrays, tolerance: float = TOLERANCE) -> Factors | None:
    """The `count` leading triples by Golub-Kahan-Lanczos from a fixed vector, every new vector made orthogonal to all.

        A V = U B,   A^T U = V B^T + b[k] v[k+1] e[k]^T        B [k, k] upper bidiagonal, or [k, k + 1] at a breakdown

    None where the Krylov space ends before it holds so many, or numbers are not finite: ties, or a low rank.
    """
    rows, columns = matrix.shape
    lefts, rights = _Basis(rows, arrays), _Basis(columns, arrays)
    diagonal: list[float] = []
    above: list[float] = []
    v = arrays.put(fixed_vector(columns), "float64")
    for step in range(1, min(rows, columns) + 2):
        rights.add(v)
        u, alpha = lefts.orthogonal(matrix @ v)
        largest = max([*diagonal, alpha])
        if not np.isfinite(largest):
            return None
        if alpha <= EPS * rows * largest:  # the left side is complete: all above the diagonal is used
            return _ritz(lefts, rights, _bidiagonal(diagonal, above), count)
        lefts.add(u)
        diagonal.append(alpha)
        v, beta = rights.orthogonal(matrix.T @ u)
        complete = beta <= EPS * columns * largest
        if complete or (step >= count and step % 4 == 0):
            system = _bidiagonal(diagonal, above)
            left, values, _ = np.linalg.svd(system)
            if complete or (beta * np.abs(left[-1, :count]) <= tolerance * values[0]).all():
                return _ritz(lefts, rights, system, count)
        above.append(beta)
    return None


def fixed_vector(n: int) -> Array:
    """The start of Lanczos, float64 [n] of length 1: no element is 0, and nothing about it repeats."""
    places = np.arange(1, n + 1) * 0.6180339887498949
    vector = np.where(np.floor(places * 2.718281828459045) % 2 == 0, 1.0, -1.0) * (0.5 + places % 1)
    return np.asarray(vector / np.linalg.norm(vector))


class _Basis:
    """Orthonormal vectors in the rows of an array that grows."""

    def __init__(self, size: int, arrays: Arrays) -> None:
        self._arrays, self.size, self.count = arrays, size, 0
        self._held = arrays.put(np.zeros((16, size)), "float64")

    def add(self, vector: Any) -> None:
        if self.count == len(self._held):
            self._held = self._arrays.xp.concatenate((self._held, 0 * self._held))
        self._held[self.count] = vector
        self.count += 1

    @property
    def vectors(self) -> Any:
        """[count, size]."""
        return self._held[: self.count]

    def put(self, array: Array) -> Any:
        """Where they lie."""
        return self._arrays.put(np.ascontiguousarray(array), "float64")

    def mixed(self, shares: Array) -> Any:
        """Sums of them, [size, n], for shares [count, n]."""
        return self.vectors.T @ self.put(shares)

    def orthogonal(self, vector: Any) -> tuple[Any, float]:
        """What of a vector lies in none of the others, at length 1, and its length; made so twice, as once rounds."""
        for _ in range(2):
            vector = vector - self.vectors.T @ (self.vectors @ vector)
        length = sqrt(float((vector * vector).sum()))
        return vector / (length or 1.0), length


def _bidiagonal(diagonal: list[float], above: list[float]) -> Array:
    """[k, k], or [k, k + 1] where one more is above than on the diagonal."""
    system = np.zeros((len(diagonal), max(len(diagonal), len(above) + 1)))
    places = np.arange(len(diagonal))
    system[places, places] = diagonal
    system[np.arange(len(above)), np.arange(len(above)) + 1] = above
    return system


def _ritz(lefts: _Basis, rights: _Basis, system: Array, count: int) -> Factors | None:
    """The triples of the projected matrix, back in the large space."""
    if min(system.shape) < count:
        return None
    left, values, right = np.linalg.svd(system)
    there = values[:count] > EPS * max(lefts.size, rights.size) * values[0]
    return Factors(
        lefts.mixed(left[:, :count] * there), lefts.put(values[:count] * there), rights.mixed(right[:count].T * there)
    )


def first_flop(rows: int, columns: int) -> float:
    """What a leading pair takes: the Gram matrix and products of it with vectors, or products of the matrix."""
    side = min(rows, columns)
    if side <= ALL:
        return eigen_flop(rows, columns)
    if side > GRAM:
        return STEPS * READING * rows * columns
    return float(rows * columns * side) + STEPS * READING * side**2


def first_bytes(rows: int, columns: int) -> int:
    """What `first` holds beside the matrix: the Gram matrix and vectors, or vectors alone."""
    side = min(rows, columns)
    return eigen_bytes(rows, columns) if side <= GRAM else 8 * 512 * (rows + columns)
