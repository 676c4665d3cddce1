"""Task singular vectors: every agent gets its share of the directions, and they are made orthogonal to each other's.

"Task Singular Vectors: Reducing Task Interference in Model Merging", https://arxiv.org/abs/2412.00081. For each
matrix, n its smaller side, T agents:

    k = int(n / T);   U_t [out, k], S_t, V_t [in, k]: the k leading triples of tau[t]
    U = [U_1 .. U_T];  S and V alike
    M = scale * polar(U) diag(S) polar(V)^T
    merged = base + M;   every other tensor: the mean of the agents

`ranks: all` keeps all n triples of every agent (the authors' lossless variant: stacks of T n columns);
`orthogonal: false` leaves out the polar factors, so that the update is the sum of the truncated task vectors.

No singular value decomposition: Gram matrices and their eigenvectors in float64, methods/spectra.py; on a GPU the polar
factors by Newton-Schulz. Against a float64 decomposition the golden set differs by 1e-11. An agent of lower rank than
its share brings fewer directions, which the record tells: public codes fill up with vectors of rounding noise, which
have no singular value but turn the others where the stack is made orthogonal. With `ranks: all` that decides the result
wherever an agent is rank-deficient, as sparse agents are in small matrices; use it for full ranks alone. A weight
multiplies tau before everything else (FusionBench's list of scales). n mod T directions are not used.

Where public codes disagree: some decompose with random projections (niter 2, oversampling 8); the authors' eigenvalue
variant works on float32 Grams, 9e-4 off with three agents and 8e-3 with two; names with text_projection are left out by
the authors. Embeddings and the head are merged like every other matrix (`excluded` leaves some to the mean).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentmerge.methods import spectra
from agentmerge.methods.iso import joined, stacked_bytes
from agentmerge.methods.spectral import Spectral, report_rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.layers import Vectors


class TsvM(Spectral):
    """The agents' leading singular vectors, made orthogonal to each other."""

    about: ClassVar[Mapping[str, str]] = {
        "tsv_m": "TSV-M: the leading singular vectors of every agent, made orthogonal to the others'."
    }
    meanings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "rank_deficient": (
            "in {} the agents have fewer directions than their share",
            "public codes fill up with rounding noise, which is left out here; most of it are agents of few changes.",
        )
    }
    in_words: ClassVar[str] = "no multiplier in a matrix: an agent's leading directions without the others'"

    name: Literal["tsv_m"] = "tsv_m"
    scale: float = 1.0
    """Multiplies the update of the matrices; the paper's alpha."""
    ranks: Literal["share", "all"] = "share"
    """How many directions each agent keeps: its share of the smaller side, or all."""
    orthogonal: bool = True
    """Make the stacks of vectors orthogonal; false adds the truncated task vectors as they are."""

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """The definition of one matrix, float64 [out, in]; None where there are more agents than directions."""
        kept = self.kept(min(vectors.shape), vectors.agents)
        if not len(vectors) or not kept:
            return None
        parts = [spectra.leading(arrays.put(tau, "float64"), kept, arrays) for tau in vectors]
        left, right, values = joined(parts, arrays)
        del parts
        report_rank(vectors, int((values > 0).sum()), kept * vectors.agents)
        if self.orthogonal:
            right = spectra.polar(right, arrays).factor
            left = spectra.polar(left, arrays).factor
        left *= self.scale * values
        return left @ right.T

    def kept(self, side: int, agents: int) -> int:
        """K of the formula."""
        return side if self.ranks == "all" else side // agents

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """T decompositions, two polar factors, the product of both."""
        kept = self.kept(min(rows, columns), agents)
        stacked = kept * agents
        parts = agents * (spectra.eigen_flop(rows, columns) + 2.0 * rows * columns * kept)
        polar = spectra.polar_flop(rows, stacked) + spectra.polar_flop(columns, stacked) if stacked else 0.0
        return parts + self.orthogonal * polar + 2.0 * rows * columns * stacked

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """Both stacks twice, a task vector or the result; what eigenvectors take."""
        kept = max(self.kept(min(rows, columns), agents), 1)
        return max(stacked_bytes(rows, columns, kept * agents), spectra.eigen_bytes(rows, columns))
