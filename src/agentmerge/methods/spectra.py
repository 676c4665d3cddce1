"""Singular vectors and polar factors without a singular value decomposition, in float64, over numpy or torch arrays.

Of a matrix A [m, n] with singular triples (s[r], u[r], v[r]), s[1] the largest, all from the Gram matrix of its smaller
side:

    leading k   v from the eigenvectors of A^T A (or u from those of A A^T), the other side by u = A v / s
    first k     the same k from the Krylov space of one fixed vector, where k is small (Golub-Kahan-Lanczos)
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

from agentmerge.methods import sparse

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.methods.arrays import Arrays
    from agentmerge.tensors import Array

EPS = 2.0**-52
EIGH = 18.0
"""What eigenvalues and vectors of [n, n] take, in n^3 FLOP of a product of matrices: measured with LAPACK."""
STEPS = 120.0
"""Products with a vector from either side that Lanczos takes for a leading pair, about, where nothing sticks out."""
NEWTON_STEPS = 45
"""Of Newton-Schulz at most: each multiplies what is small by 1.5, so 1.5^45 is about 1 / the smallest that counts."""
ALL = 128
"""Up to this side all eigenvectors are as cheap as the first few."""
GRAM = 4096
"""Up to this side the Gram matrix is cheaper than reading the matrix twice in every step of Lanczos."""
TOLERANCE = 1e-9
"""Of a leading pair: norm(A^T u - s v) as a share of the largest s."""
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
    return _other_side(matrix, found.values[:count], found.vectors[:, :count], arrays)


def _other_side(matrix: Any, squares: Any, vectors: Any, arrays: Arrays) -> Factors:
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
    largest = float(abs(squares).sum(0).max()) if squares.shape[0] else 0.0
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
    return _other_side(matrix, squares, found.right, arrays)


def _is_sparse(matrix: Any) -> bool:
    return isinstance(matrix, np.ndarray) and sparse.is_sparse(matrix)


def golub_kahan(matrix: Any, count: int, arrays: Arrays, tolerance: float = TOLERANCE) -> Factors | None:
    """The `count` leading triples by Golub-Kahan-Lanczos from a fixed vector, every new vector made orthogonal to all.

        A V = U B,   A^T U = V B^T + b[k] v[k+1] e[k]^T        B [k, k] upper bidiagonal, or [k, k + 1] at a breakdown

    None where the Krylov space ends before it holds so many, or numbers are not finite: ties, or a low rank.
    """
    rows, columns = matrix.shape
    lefts, rights = _Basis(rows, arrays), _Basis(columns, arrays)
    v, beta, diagonal, above = arrays.put(fixed_vector(columns), "float64"), 0.0, [], []
    for step in range(1, min(rows, columns) + 1):
        rights.add(v)
        u, alpha = lefts.orthogonal(matrix @ v)
        largest = max([*diagonal, alpha])
        if not np.isfinite(alpha):
            return None
        if alpha <= EPS * rows * largest or step == min(rows, columns):
            if alpha > EPS * rows * largest:
                diagonal.append(alpha)
                lefts.add(u)
            return _ritz(lefts, rights, _bidiagonal(diagonal, above), count)
        lefts.add(u)
        diagonal.append(alpha)
        v, beta = rights.orthogonal(matrix.T @ u)
        ended = beta <= EPS * columns * largest
        if ended or (step >= count and step % 4 == 0):
            system = _bidiagonal(diagonal, above)
            left, values, _ = np.linalg.svd(system)
            if ended or (beta * np.abs(left[-1, :count]) <= tolerance * values[0]).all():
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
        self._arrays, self._size, self.count = arrays, size, 0
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
    put: Callable[[Array], Any] = lambda array: lefts._arrays.put(np.ascontiguousarray(array), "float64")  # noqa: E731
    return Factors(
        lefts.vectors.T @ put(left[:, :count]), put(values[:count]), rights.vectors.T @ put(right[:count].T)
    )


def eigen_flop(rows: int, columns: int) -> float:
    """What the Gram matrix of the smaller side and all its eigenvectors take."""
    side = min(rows, columns)
    return float(rows * columns * side) + EIGH * side**3


def polar_flop(rows: int, columns: int) -> float:
    """What `polar` takes with eigenvectors."""
    side = min(rows, columns)
    return eigen_flop(rows, columns) + 2.0 * side**3 + 2.0 * rows * columns * side


def first_flop(rows: int, columns: int) -> float:
    """What a leading pair takes: the Gram matrix, or so many products that each take as long as reading."""
    side = min(rows, columns)
    return float(rows * columns * min(side, GRAM)) + STEPS * 64.0 * (side**2 if side <= GRAM else rows * columns / 8)


def eigen_bytes(rows: int, columns: int) -> int:
    """What `eigen` and `polar` hold beside the matrix: the Gram matrix, its vectors, LAPACK's work, a block."""
    return 8 * (6 * min(rows, columns) ** 2 + 2 * min(BLOCK, rows * columns))


def first_bytes(rows: int, columns: int) -> int:
    """What `first` holds beside the matrix: the Gram matrix and vectors, or vectors alone."""
    side = min(rows, columns)
    return eigen_bytes(rows, columns) if side <= GRAM else 8 * 512 * (rows + columns)
