"""DELLA: drop changes at random, the small ones of each row more often, rescale the rest, then another method.

"DELLA-Merging: Reducing Interference in Model Merging through Magnitude-Based Sampling",
https://arxiv.org/abs/2406.11617.

    rank[t, i] = place of |tau[t, i]| in its row, counted from the smallest, 0 to columns - 1; of equal ones the first
                 has the lower rank; a tensor of one axis is one row
    p[t, i]    = density[t] - epsilon[t] + 2 * epsilon[t] * rank[t, i] / (columns - 1);  density[t] for one column
    keep[t, i] = random bits of (seed, "della", agent t, tensor) at element i < p[t, i] * 2^32
    tau'[t, i] = tau[t, i] * factor where kept, else 0
    factor     = 1 / p[t, i]                                                  rescale "probability": the paper
               = sum of |tau[t]| / sum of |tau[t]| where kept, of a tensor    rescale "norm": mergekit
               = 1                                                            rescale "none"
    della         elects signs and averages what agrees    (`then`: ties at density 1)
    della_linear  adds                                     (`then`: task_arithmetic, scale 1)

Most elements of an RL agent's row are 0 and hold its lowest ranks, so that its changes, having the highest ones, are
kept with almost density + epsilon, whatever their size. Density 1 is the inner method bit for bit, as in mergekit.

Where public codes disagree: mergekit rescales by norm, and ranks equal magnitudes as its sort leaves them. Draws are
addressed by element, as those of `dare`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from agentmerge import kernels
from agentmerge.errors import RecipeError, Where
from agentmerge.methods.base import Dilution, Work
from agentmerge.methods.breadcrumbs import factors
from agentmerge.methods.cut import NOWHERE, Limits
from agentmerge.methods.density import Density, Shares, check_density, densities_of, keeps_all
from agentmerge.methods.directions import columns_in, rows_of
from agentmerge.methods.kernel import WHOLE
from agentmerge.methods.making import Made, Maker, Making
from agentmerge.randomness import random_bits, stream_key
from agentmerge.survey.products import Powers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.methods.base import Context
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec

AT_ONCE = 2**32
"""Elements whose places the loop can name."""
INNER: Mapping[str, Mapping[str, Any]] = {
    "della": {"name": "ties", "density": 1.0, "zero_sign": "plus"},
    "della_linear": {"name": "task_arithmetic", "scale": 1.0},
}
"""What the names wrap, unless a recipe says otherwise."""


@lru_cache
def probabilities(columns: int, density: float, epsilon: float) -> Array:
    """P by rank, float64 [columns]."""
    if columns <= 1:
        return np.full(columns, density)
    found: Array = density - epsilon + 2 * epsilon * np.arange(columns) / (columns - 1)
    return found


def ranks(tau: Array) -> Array:
    """The rank of every element in its row, int64 [rows, columns], of one agent's float32 [rows, columns]."""
    bits = np.ascontiguousarray(tau).view(np.uint32) & np.uint32(0x7FFFFFFF)
    order = np.argsort(bits, axis=1, kind="stable")
    found = np.empty(order.shape, np.int64)
    np.put_along_axis(found, order, np.broadcast_to(np.arange(tau.shape[1]), order.shape), axis=1)
    return found


def pruned(tau: Array, probability: Array, divisor: Array, key: tuple[int, int], start: int) -> Array:
    """One agent's task vector, drawn by rank and divided: float32 [rows, columns].

    Args:
        tau: float32 [rows, columns].
        probability: by rank, float64 [columns].
        divisor: by rank, float32 [columns].
        key: of the draws.
        start: flat index of the first element in its tensor.
    """
    rank = ranks(tau)
    keep = random_bits(key, start, tau.size).reshape(tau.shape) < probability[rank] * 2.0**32
    return np.where(keep, tau / divisor[rank], np.float32(0))


class Della(Making):
    """Another method on task vectors of which the small changes are dropped more often."""

    about: ClassVar[Mapping[str, str]] = {
        "della": "DELLA: drop changes at random, small ones more often, then elect signs and average.",
        "della_linear": "The same, and then add.",
    }

    name: Literal["della", "della_linear"] = "della"
    density: Density = 0.5
    """Kept fraction of each task vector on average, at random; a number, or one for each agent by its name."""
    epsilon: Shares = 0.15
    """How much more often the largest of a row is kept, and the smallest less; a number, or one for each agent."""
    rescale: Literal["probability", "norm", "none"] = "probability"
    """What is kept is divided by its probability (the paper), or brings the tensor back to its sum of magnitudes."""
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    """Of the draws; null takes the recipe's."""

    def bind(self, context: Context) -> Self:
        """With the recipe's seed, unless it has one; numbers by agent must name all of them."""
        check_density(self.density, context)
        check_density(self.epsilon, context, "epsilon", "the reach around the density")
        bound = super().bind(context)
        return bound if self.seed is not None else bound.model_copy(update={"seed": context.seed})

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """Rows, unless the inner method must see more."""
        inner = super().work(tensor, agents)
        return inner if inner.reach in WHOLE or keeps_all(self.density) else replace(inner, reach="row")

    def needs(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The sums of magnitudes before and after, where they count."""
        if self.rescale != "norm" or keeps_all(self.density):
            return ()
        return tuple(question for question in (Powers(1), self._after) if not survey.knows(question))

    def maker(self, survey: Survey) -> Prune | None:
        """What draws; nothing where all is kept."""
        if keeps_all(self.density):
            return None
        return survey.derived((self, "maker"), lambda: self._maker(survey))

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what drops."""
        return self.then.loops if keeps_all(self.density) else (*self.then.loops, "draw", "prune")

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The inner method's, on average where it is linear and what is kept is divided by its probability."""
        inner = super().dilution(names, counts, energy)
        if keeps_all(self.density):
            return inner
        if not inner.linear or self.rescale != "probability":
            return Dilution.unknown(len(names), "depends on what is dropped")
        return replace(inner, note="on average; divided by its probability where kept, else 0")

    @property
    def _drawn(self) -> Prune:
        return Prune(self.density, self.epsilon, self.seed or 0, self.rescale == "probability")

    @property
    def _after(self) -> Statistic[Any]:
        return Made(Powers(1), self._drawn)

    def _maker(self, survey: Survey) -> Prune:
        if self.rescale != "norm":
            return self._drawn
        before, after = survey.total(Powers(1)), survey.total(self._after)
        return replace(self._drawn, factor=factors(before, after, before.nodes))

    @model_validator(mode="after")
    def _possible(self) -> Self:
        both = [d if isinstance(d, dict) else {"": d} for d in (self.density, self.epsilon)]
        for name in sorted(both[0].keys() | both[1].keys()):
            density, epsilon = (found.get(name, found.get("")) for found in both)
            if density is None or epsilon is None:
                continue  # of an agent that one of them does not name, which `bind` tells
            if density < 1 and not 2.0**-32 <= density - epsilon <= density + epsilon < 1:
                of = f" of '{name}'" if name else ""
                raise RecipeError(
                    f"epsilon: {epsilon:g} around a density of {density:g}{of} is no probability",
                    expected="density - epsilon above 0 and density + epsilon below 1",
                    todo="Make it smaller.",
                    where=Where(path="epsilon"),
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        return {"then": dict(INNER[data.get("name", "della")]), **data} if isinstance(data, dict) else data


@dataclass(frozen=True)
class Prune(Maker):
    """Draws the elements that stay by their ranks, and rescales them."""

    density: Density
    epsilon: Shares
    seed: int
    divides: bool
    """By the probability."""
    factor: Limits = NOWHERE
    """What stays is multiplied by, by tensor; none is 1."""
    by_rows = True

    @property
    def key(self) -> str:
        """The draw."""
        return f"Pruned {json.dumps([self.density, self.epsilon, self.seed, self.divides, self.factor.digest])}"

    def __call__(self, stack: Stack) -> Stack:
        """The stack with task vectors pruned."""
        agents, tensor, columns = len(stack.agents), stack.block.tensor.name, columns_in(stack)
        keys = [stream_key(self.seed, "della", name, tensor) for name in stack.names]
        both = zip(densities_of(self.density, agents), densities_of(self.epsilon, agents), strict=True)
        kept = [probabilities(columns, d, epsilon if d < 1 else 0.0) for d, epsilon in both]
        divisor = [p.astype(np.float32) if self.divides else np.ones(columns, np.float32) for p in kept]
        backend = kernels.choose(stack)
        if backend is not None and columns and stack.base.size <= AT_ONCE:
            made = backend.prune(stack, columns, keys, kept, divisor)
        else:
            drawn = zip(rows_of(stack), kept, divisor, keys, strict=True)
            made = np.stack([pruned(*one, stack.block.start).reshape(-1) for one in drawn])
        if self.factor:
            made *= np.array(self.factor.at(tensor, (1.0,) * agents), np.float32)[:, None]
        return replace(stack, tau=made)
