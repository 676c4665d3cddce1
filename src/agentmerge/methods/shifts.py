"""The directions in which a change of a linear layer moves its outputs most, from the Gram matrix of its inputs.

Outputs X tau^T of inputs X have the Gram matrix tau C tau^T, C = X^T X, whose eigenvectors these directions are; no
output is centred. Of a tall tau [out, in] they follow from a smaller system: with C = L L^T, an eigenvector w of
L^T tau^T tau L gives the direction tau L w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentmerge.methods.spectra import EIGH

if TYPE_CHECKING:
    from agentmerge.methods.arrays import Arrays
    from agentmerge.tensors import Array


class Shift(NamedTuple):
    """The leading directions of what an agent's change does to the outputs of a layer."""

    directions: Any
    """U, float64 [out, found], the k leading ones as far as there are so many."""
    energies: Any
    """e, float64 [found], of mean 1 over k."""


def leading(tau: Any, gram: Any, kept: int, *, cut: float, exponent: float, arrays: Arrays) -> Shift:
    """The leading directions of tau C tau^T.

    Args:
        tau: float64 [out, in], not zero.
        gram: C, float64 [in, in].
        kept: k of the formula.
        cut: of eigenvalues, as a share of the largest, times out.
        exponent: of the energies.
        arrays: the library that computes.
    """
    xp, (rows, columns) = arrays.xp, tau.shape
    if outputs_are_cheaper(rows, columns):
        system = tau @ gram @ tau.T
        values, vectors = _eigen((system + system.T) / 2, arrays)
    else:
        values, vectors = _eigen(gram, arrays)
        moved = tau @ (vectors * xp.sqrt(values))
        values, vectors = _eigen(moved.T @ moved, arrays)
        vectors = (moved @ vectors) / xp.sqrt(xp.where(values > 0, values, xp.ones_like(values)))
    found = int((values[:kept] > cut * rows * values[0]).sum())
    values, vectors = values[:found], vectors[:, :found]
    energies = (values / (float(values.sum()) / kept or 1.0)) ** exponent
    return Shift(vectors, energies / (float(energies.sum()) / kept or 1.0))


def rounding_of(gram: Array) -> float:
    """How much an element may be off by how it is stored."""
    return 2.0**-52 if gram.dtype == np.float64 else 2.0**-23


def outputs_are_cheaper(rows: int, columns: int) -> bool:
    """Whether the eigenvectors of tau C tau^T take less than those of L^T tau^T tau L and of C."""
    return _output_flop(rows, columns) <= _input_flop(rows, columns)


def flop(rows: int, columns: int) -> float:
    """What `leading` takes."""
    return min(_output_flop(rows, columns), _input_flop(rows, columns))


def _output_flop(rows: int, columns: int) -> float:
    return 2.0 * rows * columns**2 + 2.0 * rows**2 * columns + EIGH * rows**3


def _input_flop(rows: int, columns: int) -> float:
    return 6.0 * rows * columns**2 + 2 * EIGH * columns**3


def _eigen(system: Any, arrays: Arrays) -> tuple[Any, Any]:
    """Eigenvalues, largest first and none below 0, and vectors of a symmetric matrix."""
    xp = arrays.xp
    values, vectors = xp.linalg.eigh(system)
    return xp.flip(xp.where(values > 0, values, xp.zeros_like(values)), (0,)), xp.flip(vectors, (1,))
