"""Singular vectors and polar factors without a singular value decomposition, in float64, over numpy or torch arrays.

Of a matrix A [m, n] with singular triples (s[r], u[r], v[r]), s[1] the largest, all from the Gram matrix of its smaller
side:

    leading k   v from the eigenvectors of A^T A (or u from those of A A^T), the other side by u = A v / s
    polar       sum of u[r] v[r]^T = A (A^T A)^(-1/2), or by Newton-Schulz, which is products alone, on a GPU

Squaring halves the digits of small singular values: what is below sqrt(side * 2^-52) of the largest, 1e-7 at 64 and
9e-7 at 3584, can't be told from nothing. Such directions are left out everywhere: their singular value and both vectors
are 0 here, where a decomposition returns vectors of rounding noise. So the polar factor of a matrix of rank r is the
partial isometry of rank r.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from agentmerge.methods.arrays import Arrays

EPS = 2.0**-52
EIGH = 18.0
"""What eigenvalues and vectors of [n, n] take, in n^3 FLOP of a product of matrices: measured with LAPACK."""
NEWTON_STEPS = 45
"""Of Newton-Schulz at most: each multiplies what is small by 1.5, so 1.5^45 is about 1 / the smallest that counts."""
BLOCK = 1 << 22
"""Elements that are computed at a time where a whole matrix more would be held otherwise."""


class Factors(NamedTuple):
    """The k leading singular triples, largest first; what is left out by rank is 0."""

    left: Any
    """float64 [m, k]."""
    values: Any
    """float64 [k]."""
    right: Any
    """float64 [n, k]."""


class Polar(NamedTuple):
    """The polar factor U V^T of a matrix U S V^T."""

    factor: Any
    """float64 [m, n]."""
    rank: int
    total: float
    """The sum of the singular values."""


class Eigen(NamedTuple):
    """Eigenvalues of a Gram matrix, largest first, and their vectors."""

    values: Any
    """float64 [n], 0 where they can't be told from it."""
    vectors: Any
    """float64 [n, n], in columns."""

    @property
    def rank(self) -> int:
        """How many are not 0."""
        return int((self.values > 0).sum())


def gram(matrix: Any, arrays: Arrays) -> Any:
    """A^T A, or A A^T where that is smaller, float64 [side, side]."""
    turned = matrix.T if matrix.shape[0] < matrix.shape[1] else matrix
    return arrays.gram(turned)


def eigen(system: Any, arrays: Arrays) -> Eigen:
    """Of a Gram matrix [n, n]; NaN where it is not finite."""
    xp = arrays.xp
    if not bool(xp.isfinite(system).all()):
        return Eigen(xp.full_like(system[0], np.nan), xp.full_like(system, np.nan))
    values, vectors = xp.linalg.eigh(system)
    values, vectors = xp.flip(values, (0,)), xp.flip(vectors, (1,))
    least = len(values) * EPS * values[0]
    return Eigen(xp.where(values > least, values, xp.zeros_like(values)), vectors)


def leading(matrix: Any, count: int, arrays: Arrays, of: Eigen | None = None) -> Factors:
    """The `count` leading triples of a matrix [m, n], float64.

    Args:
        matrix: float64.
        count: at most min(m, n).
        arrays: the library that computes.
        of: of its `gram`, where that is known already.
    """
    found = of or eigen(gram(matrix, arrays), arrays)
    return other_side(matrix, found.values[:count], found.vectors[:, :count], arrays)


def other_side(matrix: Any, squares: Any, vectors: Any, arrays: Arrays) -> Factors:
    """Triples from the eigenvectors of the smaller side's Gram matrix."""
    xp = arrays.xp
    values = xp.sqrt(squares)
    vectors = vectors * (values != 0)
    if matrix.shape[0] < matrix.shape[1]:
        return Factors(vectors, values, matrix.T @ (vectors * _inverse(values, xp)))
    return Factors(matrix @ (vectors * _inverse(values, xp)), values, vectors)


def _inverse(values: Any, xp: Any) -> Any:
    """1 / values, 0 where they are 0."""
    return (values != 0) / xp.where(values == 0, xp.ones_like(values), values)


def polar(matrix: Any, arrays: Arrays) -> Polar:
    """U V^T of a matrix's U S V^T, float64 [m, n]; the matrix is overwritten.

    On a GPU by Newton-Schulz, which needs ten times the arithmetic but products alone; else by eigenvectors.
    """
    if arrays.device == "cuda":
        return newton_schulz(matrix, arrays)
    found = eigen(gram(matrix, arrays), arrays)
    values = arrays.xp.sqrt(found.values)
    root = (found.vectors * _inverse(values, arrays.xp)) @ found.vectors.T
    return Polar(times_side(matrix, root), found.rank, float(values.sum()))


def times_side(matrix: Any, side: Any) -> Any:
    """`matrix` overwritten by its product with a symmetric matrix of its smaller side, block by block."""
    rows, columns = matrix.shape
    step = max(BLOCK // min(rows, columns), 1)
    for low in range(0, max(rows, columns), step):
        part = (slice(None), slice(low, low + step)) if rows < columns else (slice(low, low + step), slice(None))
        matrix[part] = side @ matrix[part] if rows < columns else matrix[part] @ side
    return matrix


def newton_schulz(matrix: Any, arrays: Arrays) -> Polar:
    """The same as `polar` by products alone; the matrix is overwritten.

    X = A / sqrt(the largest sum of magnitudes in a row of A^T A), at least the largest singular value
    X = 1.5 X - 0.5 X X^T X                 until trace(X^T X) = ||X^T X||^2: each singular value is 1, or 0
    """
    xp, turned = arrays.xp, matrix.shape[0] < matrix.shape[1]
    before, held = 1 * matrix, matrix.T if turned else matrix
    squares, length = held.T @ held, 0.0
    largest = float(abs(squares).sum(0).max())
    if largest == 0 or not np.isfinite(largest):
        return Polar(matrix * largest, 0, largest)
    held /= sqrt(largest)
    squares /= largest
    for _ in range(NEWTON_STEPS):
        length = float(xp.trace(squares))
        open_still = length - float((squares * squares).sum())
        times_side(held, 1.5 * xp.eye(len(squares), dtype=squares.dtype, **_there(squares)) - 0.5 * squares)
        if open_still <= 1e-9 * length:  # converges by squares: the step that was just made is the last one needed
            break
        squares = held.T @ held
    return Polar(matrix, round(length), float((matrix * before).sum()))


def _there(array: Any) -> dict[str, Any]:
    """Where a torch tensor lies, as an argument; numpy has none."""
    return {} if isinstance(array, np.ndarray) else {"device": array.device}


def eigen_flop(rows: int, columns: int) -> float:
    """What the Gram matrix of the smaller side and all its eigenvectors take."""
    side = min(rows, columns)
    return float(rows * columns * side) + EIGH * side**3


def polar_flop(rows: int, columns: int) -> float:
    """What `polar` takes with eigenvectors."""
    side = min(rows, columns)
    return eigen_flop(rows, columns) + 2.0 * side**3 + 2.0 * rows * columns * side


def eigen_bytes(rows: int, columns: int) -> int:
    """What `eigen` and `polar` hold beside the matrix: the Gram matrix, its vectors, LAPACK's work, a block."""
    return 8 * (6 * min(rows, columns) ** 2 + 2 * min(BLOCK, rows * columns))
