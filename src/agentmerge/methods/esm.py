"""ESM: every agent's share of the directions in which its change moves a layer's outputs, made equal and orthogonal.

"Essential Subspace Merging", https://arxiv.org/abs/2602.20208 (extended: https://arxiv.org/abs/2606.19164). For each
matrix of a linear layer [out, in], T agents, C[t] = X^T X of that layer's inputs on agent t's own data:

    U_t, lambda_t = eigenvectors and values of tau[t] C[t] tau[t]^T, descending        X tau^T is what moves the outputs
    k = int(out / T);   e = (lambda[:k] / mean)^0.15, then / its mean
    A = [U_t[:, :k] diag(e_t)] beside each other;   B = [diag(e_t) U_t[:, :k]^T tau[t]] above each other
    M = scale * pm(A) pm(B);   pm(X) = polar(X) * mean singular value of X
    M = M * (norm M / mean norm of M over the layers of its kind)^layer_power
    merged = base + M

The Gram matrices are what `agentmerge grams` measures (docs/grams.md), `agents.NAME.grams` of the recipe; C's scale
cancels. Matrices that are no linear layer (embeddings, the head) have no such directions and go by TSV-M, everything
else by the mean. A kind is a tensor's name with its numbers left out; norms are measured in a pass of their own, which
merges every matrix once more.

| | `esm`: the authors' RoBERTa code | `esm_vit`: their ViT code |
|---|---|---|
| `scale` | 1.0 (searched) | 2.0 |
| `task_power`, of B before pm | 0 | 2: agent t's rows times (norm tau[t] / mean over the agents)^2 |
| `column_power`, of B before pm | 0 | 2: then each column times (its norm / mean norm of the columns)^2 |
| `by_svd`: layers by TSV-M all the same | none | the attention output |
| `svd_means`: TSV-M with pm(U) diag(S) pm(V)^T | yes | no: polar factors |
| `scale_others`: what goes by TSV-M or the mean is scaled | yes | no |

The ViT code's norm of tau[t] counts rows twice from the number of its samples on, where these are fewer than rows: only
`padded_from` does so here, to compare with it.

**Where it is not defined.** Directions beyond the rank of tau[t] C[t] tau[t]^T come back through the power 0.15 of
rounding noise (1e-14 gives 0.8 %) and are left out here: an eigenvalue below out * rounding * the largest is 0, the
rounding being that of the numbers the Gram matrix is stored in, or `cut`. Where so few are left that they do not span
pm(B), the public codes' result is arbitrary (70 % other on another order of the agents); here it is the partial
isometry of what is left, and the record names those matrices: more tokens mend it, or agents that changed more. A
weight multiplies tau. Against the float64 runs of the public codes the golden set differs by 1e-6, which is the
rounding of their files, and by 3e-5 where their noise comes back.

Everything is float64: eigenvectors of the smaller of two forms (out x out, or in x in by C = L L^T), polar factors as
in methods/spectra.py. No multiplier of a unique element: M is dense.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agentmerge.methods import shifts, spectra
from agentmerge.methods.esm_norms import MatrixNorms
from agentmerge.methods.globs import Globs, LayerGlobs, matches
from agentmerge.methods.grams import gram_of, gram_shape
from agentmerge.methods.iso import joined
from agentmerge.methods.layers import WholeMatrices
from agentmerge.methods.spectral import ALL, label_of, place_of, takes, told_of
from agentmerge.survey.reported import Reported, report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.base import Beside, Told, Work
    from agentmerge.methods.vectors import Vectors
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Stack, TensorSpec

VIT = {
    "scale": 2.0,
    "task_power": 2.0,
    "column_power": 2.0,
    "by_svd": ("*o_proj*", "*out_proj*"),
    "svd_means": False,
    "scale_others": False,
}
MEANINGS = {
    "undefined": (
        "in {} there are fewer directions than esm asks for, where the public codes' result is arbitrary",
        "here it is that of the directions that are there; measure Gram matrices on more tokens.",
    )
}
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Esm(WholeMatrices):
    """Essential subspaces of the agents, by what their changes do to each layer's outputs."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"esm_vit": VIT}
    about: ClassVar[Mapping[str, str]] = {
        "esm": "ESM: the directions in which agents move a layer's outputs, made equal and orthogonal.",
        "esm_vit": "ESM with the settings of its authors' code for vision.",
    }

    name: Literal["esm", "esm_vit"] = "esm"
    scale: float = 1.0
    """Multiplies the update."""
    exponent: float = Field(default=0.15, ge=0)
    """What eigenvalues are raised to."""
    task_power: float = Field(default=0.0, ge=0)
    """How much larger task vectors count for more."""
    column_power: float = Field(default=0.0, ge=0)
    """How much larger columns of the joined task vectors count for more."""
    layer_power: float = Field(default=2.0, ge=0)
    """How much layers with a larger update than others of their kind get it enlarged; 0 saves a pass."""
    by_svd: LayerGlobs = ()
    """Globs of linear layers that go by TSV-M, without Gram matrices."""
    matrices: Globs = ALL
    """Globs of matrices beside the linear layers, which go by TSV-M. In a stack of them, * is *expert*."""
    svd_means: bool = True
    """Whether TSV-M's polar factors are multiplied by their mean singular values, as pm does."""
    scale_others: bool = True
    """Whether what goes by TSV-M or the mean is multiplied by `scale`, too."""
    cut: float | None = Field(default=None, ge=0)
    """Eigenvalues below this share of the largest, times out, count as 0; null is the rounding of the Gram matrix."""
    padded_from: int | None = Field(default=None, ge=1)
    """Row from which the ViT code counts twice in an agent's norm, its number of samples; null counts none twice."""

    @property
    def reads(self) -> tuple[Beside, ...]:
        """The agents' Gram matrices."""
        return ("grams",)

    def is_linear(self, tensor: TensorSpec) -> bool:
        """Whether a tensor is merged as a matrix at all."""
        return super().is_linear(tensor) or takes(tensor, self.matrices)

    def by_shift(self, tensor: TensorSpec) -> bool:
        """Whether it goes by what it does to the outputs, for which Gram matrices are read."""
        return super().is_linear(tensor) and not matches(tensor.name, self.by_svd)

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """See WholeMatrices; with the Gram matrices where it goes by them."""
        work = super().work(tensor, agents)
        if self.layer_power and work.flop:
            work = replace(work, times=2)  # once more for the norms
        return (
            replace(work, reach="tensor", gram=gram_shape(tensor, turned=self.is_turned(tensor)))
            if self.by_shift(tensor)
            else work
        )

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """The norms of all updates, where layers are scaled by them; what it finds out while it merges."""
        norms = MatrixNorms.of(self)
        return (Reported(),) if not self.layer_power or survey.knows(norms) else (norms, Reported())

    def factor(self, stack: Stack, survey: Survey) -> float:
        """(norm / mean norm of the kind)^layer_power; 1 of a matrix that no agent changed."""
        if not self.layer_power:
            return 1.0
        norms = survey.total(MatrixNorms.of(self))
        means: Mapping[str, float] = survey.derived((self, "means"), lambda: _means(norms))
        norm = norms.get(place_of(stack), 0.0)
        return float((norm / means[kind_of(stack.block.tensor)]) ** self.layer_power) if norm else 1.0

    @property
    def others_scale(self) -> float:
        """The scale, where it is for all tensors."""
        return self.scale if self.scale_others else 1.0

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """The matrices where it is not defined."""
        told = super().told(survey, names)
        if not survey.knows(Reported()):
            return told
        found = told_of("esm", survey.total(Reported()), MEANINGS)
        return replace(told, learned={**told.learned, **found.learned}, notes=(*told.notes, *found.notes))

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """The definition of one matrix before its layer's factor, float64 [out, in]; None where nothing changed."""
        if not self.by_shift(vectors.stack.block.tensor):
            return self._by_svd(vectors, arrays)
        kept = vectors.shape[0] // vectors.agents
        if not len(vectors) or not kept:
            return None
        left, right = self._stacked(vectors, kept, arrays)
        if left.shape[1] < min(kept * len(vectors), vectors.shape[1]):
            report("undefined", place_of(vectors.stack), left.shape[1])
        if not left.shape[1]:
            return None
        right = evened(right, min(kept * len(vectors), vectors.shape[1]), arrays)
        left = evened(left, min(kept * len(vectors), vectors.shape[0]), arrays)
        return (self.scale * left) @ right

    def _by_svd(self, vectors: Vectors, arrays: Arrays) -> Any:
        """TSV-M, as in methods/tsv_m.py, with the mean singular values of its stacks."""
        kept = min(vectors.shape) // vectors.agents
        if not len(vectors) or not kept:
            return None
        parts = [spectra.leading(arrays.put(tau, "float64"), kept, arrays) for tau in vectors]
        left, right, values = joined(parts, arrays)
        del parts
        turned, factor = [], self.others_scale
        for stacked in (left, right):
            found = spectra.polar(stacked, arrays)
            turned.append(found.factor)
            factor *= found.total / min(stacked.shape) if self.svd_means else 1.0
        return (turned[0] * (factor * values)) @ turned[1].T

    def _stacked(self, vectors: Vectors, kept: int, arrays: Arrays) -> tuple[Any, Any]:
        """A [out, found] and B [found, in]."""
        xp, lefts, rights, sizes = arrays.xp, [], [], []
        for i, t in enumerate(vectors.changed):
            gram, tau = gram_of(vectors, t), arrays.put(vectors[i], "float64")
            cut = shifts.rounding_of(gram) if self.cut is None else self.cut
            shift = shifts.leading(
                tau, arrays.put(gram, "float64"), kept, cut=cut, exponent=self.exponent, arrays=arrays
            )
            lefts.append(shift.directions * shift.energies)
            rights.append(lefts[-1].T @ tau)
            sizes.append(self._size(tau))
        if self.task_power:
            mean = sum(sizes) / len(sizes)
            rights = [rows * (size / mean) ** self.task_power for rows, size in zip(rights, sizes, strict=True)]
        right = xp.concatenate(rights)
        if self.column_power:
            columns = xp.sqrt((right * right).sum(0))
            mean = float(columns.sum()) / len(columns)
            right = right * (columns / (mean or 1.0)) ** self.column_power
        return xp.concatenate(lefts, 1), right

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """The directions of every agent, two polar factors, the product of both."""
        kept = min(rows // agents, columns)  # tau C tau^T has no more directions
        stacked = kept * agents
        each = shifts.flop(rows, columns) + 2.0 * rows * columns * kept
        polar = spectra.polar_flop(rows, stacked) + spectra.polar_flop(stacked, columns) if stacked else 0.0
        return agents * each + polar + 2.0 * rows * columns * stacked

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """Both stacks twice, a task vector and its Gram matrix, the result; what eigenvectors take."""
        stacked = max(min(rows // agents, columns) * agents, 1)
        side = rows if shifts.outputs_are_cheaper(rows, columns) else columns
        directions = 6 * side**2 + columns**2 + 2 * rows * columns
        polar = max(spectra.eigen_bytes(rows, stacked), spectra.eigen_bytes(stacked, columns))
        return 8 * (2 * stacked * (rows + columns) + rows * columns) + max(8 * directions, polar)

    def _size(self, tau: Any) -> float:
        """The norm of a task vector, as the ViT code has it where that is wanted."""
        squares = float((tau * tau).sum())
        if self.padded_from is not None:
            squares += float((tau[self.padded_from :] ** 2).sum())
        return float(np.sqrt(squares))


def evened(matrix: Any, count: int, arrays: Arrays) -> Any:
    """pm: the polar factor times the mean of `count` singular values; the matrix is overwritten."""
    found = spectra.polar(matrix, arrays)
    return found.factor * (found.total / count)


def kind_of(tensor: TensorSpec) -> str:
    """What the same matrices of all layers have in common: the name without its numbers."""
    return NUMBER.sub("*", label_of(tensor))


def _means(norms: Mapping[str, float]) -> dict[str, float]:
    """The mean norm of every kind, over the matrices that some agent changed."""
    found: dict[str, list[float]] = {}
    for place, norm in sorted(norms.items()):
        if norm:
            found.setdefault(NUMBER.sub("*", place.partition("[")[0]), []).append(norm)
    return {kind: sum(values) / len(values) for kind, values in found.items()}
