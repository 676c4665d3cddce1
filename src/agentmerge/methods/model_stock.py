"""Model Stock: go along the mean task vector as far as the agents agree on a direction.

"Model Stock: All we need is just a few fine-tuned models", https://arxiv.org/abs/2403.19522.

    c      = mean over s < t of cos(tau[s], tau[t]), of a tensor (filter_wise: of each of its rows)
    r      = N * c / (1 + (N - 1) * c), 0 where the divisor is less than 1e-6
    merged = base + r * sum of weight[t] * tau[t] / N

**Not for RL agents.** Their task vectors are nearly orthogonal, so c and r are about 0, and the result is about the
base: r is 0.006 to 0.12 in the matrices of the golden set, and below 0 where the cosines are. The merge says so.

Where public codes disagree: the paper derives r for two agents and one angle between all; mergekit takes the mean of
the pairwise cosines, as here, and takes a product of norms below 1e-6 for 1e-6, which shrinks the cosines of what
changed by less, as rows of RL task vectors do: `floor` 1e-6. Without it a cosine is 0 only beside an agent that changed
nothing. mergekit knows no weights; here they multiply the sum, and not the cosines.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from agentmerge.errors import Note, RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Context, Dilution, MergeMethod, Told, Work, added
from agentmerge.methods.directions import cosines, gram_at, products_of, row_grams, weighted
from agentmerge.survey.products import Products, gram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.survey.sums import TreeSums
    from agentmerge.tensors import Array, Stack, TensorSpec

LEAST = 1e-6
"""Of the divisor."""
LITTLE = 0.2
"""A ratio below it, over the whole checkpoint, is told: the merge keeps less than a fifth of the mean."""


def ratio(products: Array, floor: float) -> Array:
    """The r of the formula, float64 [...], from inner products float64 [..., agents, agents]."""
    cosine, agents, mean = cosines(products, floor), products.shape[-1], np.zeros(products.shape[:-2])
    for s, t in combinations(range(agents), 2):
        mean = mean + cosine[..., s, t]
    mean = mean / max(agents * (agents - 1) // 2, 1)
    divisor = 1 + (agents - 1) * mean
    return np.where(divisor < LEAST, 0.0, agents * mean / np.where(divisor < LEAST, 1.0, divisor))


class ModelStock(MergeMethod):
    """The mean task vector, shortened by how little the agents agree."""

    about: ClassVar[Mapping[str, str]] = {
        "model_stock": "Model Stock: the mean, the nearer to the base the less agents agree; of RL agents the base."
    }

    name: Literal["model_stock"] = "model_stock"
    filter_wise: bool = False
    """Take the angles of each row, instead of the whole tensor."""
    floor: float = Field(default=0.0, ge=0)
    """A product of two norms counts as this much where it is less; mergekit has 1e-6."""

    def bind(self, context: Context) -> Self:
        """An angle takes two agents."""
        if len(context.weights) < 2:
            found, todo = "agents: model_stock takes two agents or more, found 1", "Give it another, or use `linear`."
            raise RecipeError(found, todo=todo, where=Where(path="agents"))
        return self

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """Rows where their angles count."""
        return Work("row" if self.filter_wise else "element")

    def ask(self, survey: Survey) -> tuple[Statistic[TreeSums], ...]:
        """The inner products: for the ratios, and for what is told."""
        return () if survey.knows(Products()) else (Products(),)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        if not self.filter_wise:
            return added(stack.base, weighted(stack.task_vectors(), self._coefficients(stack, survey)))
        tau, agents = stack.task_vectors(), len(stack.agents)
        rows = ratio(row_grams(stack), self.floor) / agents
        total = weighted(tau, stack.weight())
        return added(stack.base, np.repeat(rows.astype(np.float32), tau.shape[1] // max(len(rows), 1)) * total)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("given",) if self.filter_wise else ("linear",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass; none row by row."""
        if self.filter_wise:
            return None
        settings = formulas.Linear(self.overlap.threshold, self._coefficients(stack, survey))
        return (Kernel("linear", settings, stack),)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """The ratio over the whole checkpoint, and that little is left where it is small."""
        if not survey.knows(Products()):
            return Told()
        found = float(ratio(gram(survey.total(Products())), self.floor))
        notes = [] if found >= LITTLE else [_warning(found)]
        return Told(learned={"model_stock_ratio": found}, notes=tuple(notes))

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """R / N of everything, r from all changed elements together."""
        agents, products = len(names), products_of(energy)
        found = float(ratio(products, 0.0)) / agents
        note = f"r / N, and r about {found * agents:.2g}: nearly the base"
        return Dilution(np.full(agents, found), found * products.sum(axis=0) / np.diag(products), note)

    def _coefficients(self, stack: Stack, survey: Survey) -> Array:
        """Of each task vector, float32 [agents]."""

        def made() -> Array:
            found = ratio(gram_at(survey, stack), self.floor) / len(stack.agents)
            return (found * stack.weight()).astype(np.float32)

        return survey.derived((self, stack.block.tensor.name, stack.weights), made)


def _warning(found: float) -> Note:
    return Note(
        f"model_stock: the agents' changes are nearly orthogonal, so the merge is nearly the base: the ratio is "
        f"{found:.3g} over the whole checkpoint, and 1 would be their mean;",
        "another method is what RL agents need, see docs/methods.md",
    )
