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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field, field_validator

from agentmerge import kernels
from agentmerge.methods.base import Dilution, before_merging
from agentmerge.methods.density import Density, check_density, densities_of, keeps_all
from agentmerge.methods.kernel import CACHED, in_parts, sees_whole
from agentmerge.methods.wrapper import Wrapper
from agentmerge.randomness import random_bits, stream_key
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.kernels import Backend, Kernel
    from agentmerge.methods.base import Context, Told, Work
    from agentmerge.survey.answers import Answers
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Foldable
    from agentmerge.tensors import Array, Stack, TensorSpec


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


class Dare(Wrapper):
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

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """The inner method's; what is kept of it is of these draws."""
        work = super().work(tensor, agents)
        return replace(work, draft=self._under + work.draft) if work.draft else work

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What the inner method asks, of the dropped task vectors.

        What it asks of the stored result is left out where anything is dropped: it would be about its own task vectors.
        """
        asked = super().ask(survey)
        if keeps_all(self.density):
            return asked
        return tuple(Dropped(statistic, self.density, self.seed or 0) for statistic in before_merging(asked))

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner method on the dropped task vectors, float32 [n]."""
        return super().merge(stack if keeps_all(self.density) else drop(stack, self.density, self.seed or 0), survey)

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what drops."""
        return self.then.loops if keeps_all(self.density) else (*self.then.loops, "drop")

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's kernels on the dropped task vectors; none where it must see a tensor whole."""
        if keeps_all(self.density):
            return super().kernel(stack, survey)
        if sees_whole(self, stack):
            return None
        inner = self._inner(survey)
        return in_parts(stack, lambda part: self.then.kernel(drop(part, self.density, self.seed or 0), inner))

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

    def _inner(self, survey: Survey) -> Survey:
        if keeps_all(self.density):
            return survey
        return survey.derived(self, lambda: survey.seen_through(self._dropped, self._under))

    @property
    def _under(self) -> str:
        """Tells what is kept of these draws from the rest; "" where nothing is dropped."""
        return "" if keeps_all(self.density) else f"{json.dumps([self.density, self.seed or 0])} "

    def _dropped(self, question: Foldable[Any]) -> Foldable[Any]:
        """The question that is asked in its place; one about the stored result is asked of nobody, so not known."""
        return Dropped(cast("Statistic[Any]", question), self.density, self.seed or 0)


@dataclass(frozen=True)
class Dropped(Statistic[Any]):
    """Another statistic, of the dropped task vectors."""

    inner: Statistic[Any]
    density: Density
    seed: int

    @property
    def per_tensor(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.inner.per_tensor

    @property
    def answers(self) -> Answers[Any]:
        """The inner one's."""
        return self.inner.answers

    @property
    def key(self) -> str:
        """The inner key and the draw."""
        return f"Dropped {json.dumps([self.density, self.seed])} {self.inner.key}"

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """As of the inner one."""
        return self.inner.share(tensor, agents)

    def flop(self, tensor: TensorSpec, agents: int) -> float:
        """As of the inner one."""
        return self.inner.flop(tensor, agents)

    def observe(self, stack: Stack) -> Any:
        """The inner answer for the dropped stack."""
        return self.inner.observe(drop(stack, self.density, self.seed))

    def kernel(self, stack: Stack, kernels: Backend) -> Any:
        """The inner answer by its kernel, part by part."""
        answer = None
        for part in self.parts(stack, CACHED):
            found = self.inner.kernel(drop(part, self.density, self.seed), kernels)
            if found is None:
                return None
            answer = found if answer is None else self.answers.combine(answer, found)
        return answer

    def parts(self, stack: Stack, elements: int = 32 * LEAF) -> Iterable[Stack]:
        """As the inner one."""
        return self.inner.parts(stack, elements)
