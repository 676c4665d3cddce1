"""DARE: drop elements of the task vectors at random and rescale the rest, then merge by another method.

"Language Models are Super Mario", https://arxiv.org/abs/2311.03099.

    keep[t, i] = random bits of (seed, "dare", agent t, tensor) at element i < density[t] * 2^32
    tau'[t, i] = tau[t, i] / density[t] where kept, else 0

The inner method then sees base and tau'; what it asks to be folded is folded over tau' too. The draws are addressed by
element, so no block size, worker count or runner changes them. Density 1 is the inner method, bit for bit.

Where public codes disagree: MergeLM takes the drop rate (1 - density); mergekit's dare_ties is `dare` around `ties` at
density 1, and rescales unless told otherwise. MergeLM divides by zero at density 0, which is refused here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator

from agentmerge import kernels
from agentmerge.methods.base import Dilution, before_merging
from agentmerge.methods.density import Density, check_density, densities_of, keeps_all
from agentmerge.methods.making import Maker, Making
from agentmerge.randomness import random_bits, stream_key
from agentmerge.survey.statistic import Survey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.methods.base import Context, Told
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.tensors import Array, Stack


def dropped(tau: Array, keys: Sequence[tuple[int, int]], densities: Sequence[float], start: int) -> Array:
    """The definition: task vectors float32 [agents, n] dropped and rescaled, by key and density of each agent."""
    result = np.empty_like(tau)
    for t, (key, density) in enumerate(zip(keys, densities, strict=True)):
        keep = random_bits(key, start, tau.shape[1]) < density * 2.0**32
        result[t] = np.where(keep, tau[t] / np.float32(density), np.float32(0))
    return result


def drop(stack: Stack, density: float | Mapping[str, float], seed: int) -> Stack:
    """The stack with task vectors dropped and rescaled."""
    keys = [stream_key(seed, "dare", name, stack.block.tensor.name) for name in stack.names]
    densities = densities_of(density, len(keys))
    if (backend := kernels.choose(stack)) is not None:
        return replace(stack, tau=backend.drop(stack, keys, densities))
    return replace(stack, tau=dropped(stack.task_vectors(), keys, densities, stack.block.start))


class Dare(Making):
    """Random drop and rescale around another method."""

    about: ClassVar[Mapping[str, str]] = {
        "dare": "DARE: drop changes at random, rescale the rest, then another method."
    }

    name: Literal["dare"] = "dare"
    density: Density = 0.5
    """Kept fraction of each task vector, at random; a number, or one for each agent by its name."""
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    """Of the draws; null takes the recipe's."""

    @field_validator("density")
    @classmethod
    def _drawable(cls, value: Any) -> Any:
        if any(kept < 2.0**-32 for kept in (value.values() if isinstance(value, dict) else (value,))):
            raise ValueError("a density below 2^-32, about 2.33e-10, keeps nothing, as a draw has 32 bits")
        return value

    def bind(self, context: Context) -> Self:
        """With the recipe's seed, unless it has one; a density by agent must name all of them."""
        check_density(self.density, context)
        bound = super().bind(context)
        return bound if self.seed is not None else bound.model_copy(update={"seed": context.seed})

    def maker(self, survey: Survey) -> Drop | None:
        """What draws; nothing where all is kept."""
        return None if keeps_all(self.density) else Drop(self.density, self.seed or 0)

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what drops."""
        return self.then.loops if keeps_all(self.density) else (*self.then.loops, "drop")

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """What the inner method tells of the dropped task vectors; a kept element is divided by the density besides.

        A scale that it knows without a fold is none here: it is not what becomes of an element.
        """
        told = super().told(survey, names)
        measured = keeps_all(self.density) or before_merging(self.then.ask(Survey()))
        return told if measured else replace(told, scales=None)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The inner method's on average where it is linear; what others make of dropped task vectors is not known."""
        inner = super().dilution(names, counts, energy)
        if keeps_all(self.density):
            return inner
        densities = densities_of(self.density, len(names))
        if not inner.linear:
            return Dilution.unknown(len(names), "depends on what is dropped")
        kept = ", ".join(dict.fromkeys(f"{m / d:.3g}" for m, d in zip(inner.multiplier, densities, strict=True)))
        return replace(inner, note=f"on average; {kept} where kept, else 0")


@dataclass(frozen=True)
class Drop(Maker):
    """Draws the elements that stay, and rescales them."""

    density: Density
    seed: int

    @property
    def key(self) -> str:
        """The draw."""
        return f"Dropped {json.dumps([self.density, self.seed])}"

    def __call__(self, stack: Stack) -> Stack:
        """The stack with task vectors dropped and rescaled."""
        return drop(stack, self.density, self.seed)
