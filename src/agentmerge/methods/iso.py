"""Isotropic merging: the sum of the task vectors with all its singular values made equal.

"No Task Left Behind: Isotropic Model Merging with Common and Task-Specific Subspaces",
https://arxiv.org/abs/2502.04959. For each matrix, n its smaller side, D = sum of tau[t] = U S V^T, polar(U S V^T) =
U V^T:

    iso_c     M = scale * mean(S) * U V^T
    iso_cts   k = int(n * common_space_fraction);  d = round((n - k) / T), half to even;  k = n - T d
              U_c, S_c, V_c: the first k triples of D
              U_t, S_t, V_t: the first d triples of (I - U_c U_c^T) tau[t], projected on its left side only
              U = [U_1 .. U_T, U_c];  S and V alike;   M = scale * mean(S) * polar(U) polar(V)^T
    merged    = base + M;   every other tensor: the mean of the agents

No singular value decomposition: Gram matrices and their eigenvectors in float64; on a GPU polar factors by
Newton-Schulz. Against a float64 decomposition the golden set differs by 1e-11. A matrix of rank r < n has no polar
factor in its null space: there public codes return rounding noise of size mean(S), and here it is 0, which the record
tells; mean(S) divides by n all the same. A weight multiplies tau before everything else. Between transposed matrices
iso_c makes no difference; iso_cts does (`transposed`).

Where public codes disagree: the authors' code searches `scale` on validation data, FusionBench has 1.0, and 1.5 in its
settings for SVC; the authors leave out names with text_projection, FusionBench nothing unless it is told. Embeddings
and the head are merged like every other matrix by both (`excluded`: "*text_projection*,*embed*,*lm_head*" leaves them
to the mean).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentmerge.methods import spectra
from agentmerge.methods.spectral import Spectral, report_rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.layers import Vectors
    from agentmerge.methods.spectra import Factors

DEFICIENT = {
    "rank_deficient": (
        "{} with fewer directions than the method spreads its update over",
        "the missing ones get no update: public codes put rounding noise there.",
    )
}


class IsoC(Spectral):
    """The sum with equal singular values."""

    about: ClassVar[Mapping[str, str]] = {
        "iso_c": "Iso-C: the sum of the task vectors, all singular values of a matrix made equal."
    }
    meanings: ClassVar[Mapping[str, tuple[str, str]]] = DEFICIENT
    in_words: ClassVar[str] = "no multiplier in a matrix: all of its directions get one size"

    name: Literal["iso_c"] = "iso_c"
    scale: float = 1.0
    """Multiplies the update of the matrices."""

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """The definition of one matrix, float64 [out, in]."""
        if not len(vectors):
            return None
        side = min(vectors.shape)
        found = spectra.polar(total(vectors, arrays), arrays)
        report_rank(vectors, found.rank, side)
        update = found.factor
        update *= self.scale * found.total / side
        return update

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """Gram, eigenvectors, and two products."""
        return spectra.polar_flop(rows, columns)

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """The sum, which becomes its polar factor; a task vector in both precisions; what eigenvectors take."""
        return 8 * 3 * rows * columns + spectra.eigen_bytes(rows, columns)


class IsoCts(Spectral):
    """The common directions of the sum, the agents' own ones beside them, all of one size."""

    about: ClassVar[Mapping[str, str]] = {
        "iso_cts": "Iso-CTS: Iso-C with a share of the directions kept for what each agent has alone."
    }
    meanings: ClassVar[Mapping[str, tuple[str, str]]] = DEFICIENT
    in_words: ClassVar[str] = "no multiplier in a matrix: all of its directions get one size"

    name: Literal["iso_cts"] = "iso_cts"
    scale: float = 1.0
    """Multiplies the update of the matrices."""
    common_space_fraction: float = Field(default=0.8, ge=0, le=1)
    """Share of the directions that the sum gets; the agents divide the rest."""

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """The definition of one matrix, float64 [out, in]."""
        if not len(vectors):
            return None
        side = min(vectors.shape)
        own = self.own_directions(side, vectors.agents)
        common = spectra.leading(total(vectors, arrays), side - own * vectors.agents, arrays)
        parts = [self._own(arrays.put(tau, "float64"), common, own, arrays) for tau in vectors] if own else []
        left, right, values = joined([*parts, common], arrays)
        del parts, common
        report_rank(vectors, int((values > 0).sum()), side)
        size = self.scale * float(values.sum()) / side
        right = spectra.polar(right, arrays).factor
        left = spectra.polar(left, arrays).factor
        left *= size
        return left @ right.T

    def own_directions(self, side: int, agents: int) -> int:
        """The d of the formula, such that no direction is given away twice."""
        return min(round((side - int(side * self.common_space_fraction)) / agents), side // agents)

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """T + 1 decompositions, two polar factors, and what projects and puts together."""
        side = min(rows, columns)
        common = side - agents * self.own_directions(side, agents)
        products = 2.0 * rows * columns * (2 * side + 2 * agents * common)
        polar = spectra.polar_flop(rows, side) + spectra.polar_flop(columns, side)
        return (agents + 1) * spectra.eigen_flop(rows, columns) + products + polar

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """A task vector before and after, or both stacks and the result; what eigenvectors take."""
        return stacked_bytes(rows, columns, min(rows, columns))

    def _own(self, tau: Any, common: Factors, count: int, arrays: Arrays) -> Factors:
        tau -= common.left @ (common.left.T @ tau)
        return spectra.leading(tau, count, arrays)


def total(vectors: Vectors, arrays: Arrays) -> Any:
    """The sum of the task vectors, float64 [out, in]."""
    found = None
    for tau in vectors:
        if found is None:
            found = arrays.put(tau, "float64")
        else:
            found += tau
    return found


def joined(parts: list[Factors], arrays: Arrays) -> tuple[Any, Any, Any]:
    """Left vectors, right vectors and values of several, beside each other."""
    join = arrays.xp.concatenate
    return join([p.left for p in parts], 1), join([p.right for p in parts], 1), join([p.values for p in parts])


def stacked_bytes(rows: int, columns: int, stacked: int) -> int:
    """Stacks of so many vectors of either side, twice while they are joined; two matrices; what eigenvectors take."""
    largest = max(spectra.eigen_bytes(rows, stacked), spectra.eigen_bytes(columns, stacked))
    return 8 * (2 * stacked * (rows + columns) + 2 * rows * columns) + largest
