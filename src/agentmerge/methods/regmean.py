"""RegMean: the matrix whose outputs are nearest to every agent's, on the inputs that this agent's own data give it.

"Dataless Knowledge Fusion by Merging Weights of Language Models", https://arxiv.org/abs/2212.09849. For each matrix of
a linear layer [out, in], G[t] = X^T X / tokens [in, in] of the inputs X of that layer on agent t's own data:

    G~[t]  = scaling * G[t] + (1 - scaling) * diag(G[t])                    what is not on the diagonal made smaller
    W      = argmin of sum over t of w[t] * trace of (W - W[t]) G~[t] (W - W[t])^T
           = (sum of w[t] W[t] G~[t]) (sum of w[t] G~[t])^-1
    merged = base + M,   M = (sum of w[t] tau[t] G~[t]) (sum of w[t] G~[t])^-1        the same, as the base cancels
    every other tensor: the mean of the agents

The Gram matrices are what `agentmerge grams` measures (docs/grams.md), `agents.NAME.grams` of the recipe. A weight
multiplies the agent's matrix, so only ratios count, and must not be negative. The sums are formed agent by agent in
float64 and solved by Cholesky. `ridge` pulls towards the plain mean by a share of the mean eigenvalue, so little that
it decides only where no agent's data reach: an input that is 0 on all data gets the mean, where the inverse does not
exist. An agent that is skipped or lacks the tensor takes no part; one that is equal to the base does, with its inputs.
Where the recipe has `keep`, the base is such an agent, of weight `keep`.

With scaling 1 the result may bend far where few tokens were measured or inputs are nearly dependent, which is what the
paper's scaling, about 0.9, is for. Within a linear layer an element has no multiplier of its own: it depends on the
whole row of the matrix. A row that no agent changed keeps the base's.

Where public codes disagree: the authors' code scales only where it is told to; MergeLM has 1.0; FusionBench 0.1 for any
model, 0.95 for CLIP and 0.6 for GPT-2. They invert the sum in float32, which fails or gives noise where it is singular.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from agentmerge.errors import DataError, RecipeError, Where
from agentmerge.methods.grams import gram_of, gram_shape, keeps, kept_gram, with_keep
from agentmerge.methods.layers import WholeMatrices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.methods.arrays import Arrays
    from agentmerge.methods.base import Beside, Context, Work
    from agentmerge.methods.vectors import Vectors
    from agentmerge.tensors import TensorSpec


class RegMean(WholeMatrices):
    """The regression mean of linear layers."""

    about: ClassVar[Mapping[str, str]] = {
        "regmean": "RegMean: the matrices whose outputs are nearest to every agent's on its own inputs."
    }

    name: Literal["regmean"] = "regmean"
    scaling: float = Field(default=0.9, ge=0, le=1)
    """Multiplies what is not on the diagonal of the Gram matrices; the paper's alpha."""
    ridge: float = Field(default=1e-9, ge=0)
    """Pull towards the mean of the agents, as a share of the mean eigenvalue of the summed Gram matrices."""
    keep: float | None = Field(default=None, ge=0)
    """The base's weight where the recipe has `keep`; null is 0.1 there."""

    def bind(self, context: Context) -> Self:
        """The sum of the Gram matrices must not cancel."""
        weights = context.weights
        wrong = [name for name in sorted(weights) if weights[name] < 0]
        if wrong or not any(weights.values()):
            path = f"agents.{wrong[0]}.weight" if wrong else "agents"
            found = f"{path}: {weights[wrong[0]]:g}" if wrong else "agents: every weight is 0"
            expected = "weights of at least 0, one of them more: regmean multiplies Gram matrices by them"
            raise RecipeError(found, expected=expected, where=Where(path=path))
        return self.model_copy(update={"keep": keeps(self.keep, context, self.name)})

    @property
    def reads(self) -> tuple[Beside, ...]:
        """The agents' Gram matrices, and the base's where the recipe has them."""
        return ("grams",) if self.keep is None else ("grams", "keep")

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """See WholeMatrices; with the Gram matrices."""
        work = super().work(tensor, agents)
        if not self.is_linear(tensor):
            return work
        shape = gram_shape(tensor, turned=self.is_turned(tensor))
        return with_keep(replace(work, reach="tensor", gram=shape), self.keep, shape)

    def update(self, vectors: Vectors, arrays: Arrays) -> Any:
        """The definition of one matrix, float64 [out, in]; None where no agent changed anything."""
        if not len(vectors):
            return None
        system, right, mean, shares = self._summed(vectors, arrays)
        pull = self.ridge * (float(arrays.xp.trace(system)) / len(system) or 1.0)
        right = right + (pull / shares) * mean
        try:
            found = arrays.solved(system, pull, right)
        except (np.linalg.LinAlgError, RuntimeError) as error:  # torch's is a RuntimeError
            raise self._singular(vectors, str(error)) from None
        if not bool(arrays.xp.isfinite(found).all()):
            raise self._singular(vectors, "the solution is not finite")
        return found

    def _summed(self, vectors: Vectors, arrays: Arrays) -> tuple[Any, Any, Any, float]:
        """Sums of w G~, of w tau G~, of w tau and of w, over the agents that take part and what the base keeps."""
        system, right, mean, shares = None, 0.0, 0.0, 0.0
        taus = dict(zip(vectors.changed, range(len(vectors)), strict=True))
        for t, weight in enumerate(vectors.stack.weight().tolist()):
            if (gram := gram_of(vectors, t)) is None or weight == 0:
                continue
            held, shares = self.scaled(arrays.put(gram, "float64"), arrays), shares + weight
            if t in taus:
                tau = arrays.put(vectors[taus[t]], "float64")  # times the weight
                right, mean = right + tau @ held, mean + tau
            held *= weight
            if system is None:
                system = held
            else:
                system += held
        if self.keep and (gram := kept_gram(vectors)) is not None:
            system, shares = system + self.keep * self.scaled(arrays.put(gram, "float64"), arrays), shares + self.keep
        return system, right, mean, shares

    def scaled(self, gram: Any, arrays: Arrays) -> Any:
        """G~ of one agent, float64 [in, in]; a new array."""
        diagonal = arrays.xp.diagonal(gram) * (1 - self.scaling)
        found = self.scaling * gram
        found.reshape(-1)[:: len(found) + 1] += diagonal
        return found

    def matrix_flop(self, rows: int, columns: int, agents: int) -> float:
        """A product with each Gram matrix, and the solution."""
        return agents * 2.0 * rows * columns**2 + columns**3 / 3 + 2.0 * rows * columns**2

    def matrix_bytes(self, rows: int, columns: int, agents: int) -> int:
        """The summed Gram matrix, an agent's as it is and scaled, or what Cholesky takes; four of the layer."""
        return 8 * (4 * rows * columns + 4 * columns**2)

    def _singular(self, vectors: Vectors, why: str) -> DataError:
        name = vectors.stack.block.tensor.name
        return DataError(
            f"{name}: the agents' Gram matrices together have no inverse ({why})",
            expected="inputs that are independent of each other",
            todo="Set method.scaling below 1, method.ridge above 0, or measure them on more examples.",
            where=Where(tensor=name),
        )
