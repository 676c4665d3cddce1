"""What every method shares that makes other task vectors and hands them to an inner method. Abstract.

The inner method sees the base and tau'; what it asks to be folded is folded over tau' too.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, cast

from agentmerge.methods.arrays import Arrays
from agentmerge.methods.base import before_merging
from agentmerge.methods.kernel import WHOLE, in_parts, parts_of, sees_whole
from agentmerge.methods.wrapper import Wrapper
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.tensors import LEAF, Reach

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.kernels import Backend, Kernel
    from agentmerge.methods.base import Work
    from agentmerge.survey.answers import Answers
    from agentmerge.survey.statistic import Foldable
    from agentmerge.tensors import Array, Stack, TensorSpec


class Maker(ABC):
    """Makes other task vectors of a stack; subclasses are frozen dataclasses, so that a maker is a value."""

    by_rows = False
    """Whether it must see whole rows."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Its name and settings, which tell what is folded over its task vectors from what is folded over others."""

    @abstractmethod
    def __call__(self, stack: Stack) -> Stack:
        """The stack with the other task vectors."""


class Making(Wrapper):
    """A wrapper whose inner method sees made task vectors; a subclass says who makes them, and what that takes."""

    def needs(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """What must be known before `maker` can be asked, and the survey does not hold yet."""
        return ()

    @abstractmethod
    def maker(self, survey: Survey) -> Maker | None:
        """Who makes the task vectors; None where they stay the agents' own."""

    @property
    def under(self) -> str:
        """What the names of kept results begin with: they are of the made task vectors."""
        return f"{json.dumps(self.model_dump(mode='json', exclude={'then'}), sort_keys=True)} "

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """The inner method's."""
        work = super().work(tensor, agents)
        if work.reach in WHOLE:  # what is made is whole, too
            elements = prod(tensor.shape[-2:]) if work.reach == "matrix" else tensor.elements
            needed = work.bytes + 4 * agents * elements
            work = replace(work, bytes=needed, share=max(work.share, Arrays().share(needed)))
        return replace(work, draft=self.under + work.draft) if work.draft else work

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What the maker needs; then what the inner method asks, of the made task vectors.

        What that asks of the stored result is left out where any are made: it would be about its own task vectors.
        """
        if needed := self.needs(survey):
            return needed
        maker, asked = self.maker(survey), super().ask(survey)
        return asked if maker is None else tuple(Made(question, maker) for question in before_merging(asked))

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner method on the made task vectors, float32 [n]."""
        if (maker := self.maker(survey)) is None:
            return self.then.merge(stack, survey)
        return self.then.merge(maker(stack), self._behind(maker, survey))

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's kernels on the made task vectors; none where it must see a tensor whole."""
        maker = self.maker(survey)
        if maker is None:
            return self.then.kernel(stack, survey)
        if sees_whole(self, stack):
            return None
        inner, make = self._behind(maker, survey), maker
        return in_parts(stack, lambda part: self.then.kernel(make(part), inner), parts_of(self, stack))

    def _inner(self, survey: Survey) -> Survey:
        if self.needs(survey):
            return Survey()
        maker = self.maker(survey)
        return survey if maker is None else self._behind(maker, survey)

    def _behind(self, maker: Maker, survey: Survey) -> Survey:
        """The survey of what was made, once it is known who makes: asked for every block, so `needs` is not."""
        return survey.derived((self, "inner"), lambda: survey.seen_through(lambda q: _made(q, maker), self.under))


def _made(question: Foldable[Any], maker: Maker) -> Foldable[Any]:
    """The question that is asked in its place; one about the stored result is asked of nobody, so not known."""
    return Made(cast("Statistic[Any]", question), maker)


@dataclass(frozen=True)
class Made(Statistic[Any]):
    """Another statistic, of made task vectors."""

    inner: Statistic[Any]
    maker: Maker

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
        """The maker's and the inner one's."""
        return f"Made by {self.maker.key}: {self.inner.key}"

    def reach(self, tensor: TensorSpec, agents: int) -> Reach:
        """As of the inner one."""
        reach: Reach = self.inner.reach(tensor, agents)
        return reach

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """As of the inner one."""
        return self.inner.share(tensor, agents)

    def flop(self, tensor: TensorSpec, agents: int) -> float:
        """As of the inner one."""
        return self.inner.flop(tensor, agents)

    def observe(self, stack: Stack) -> Any:
        """The inner answer for the stack of made task vectors."""
        return self.inner.observe(self.maker(stack))

    def kernel(self, stack: Stack, kernels: Backend) -> Any:
        """The inner answer by its kernel, part by part."""
        answer = None
        for part in self.parts(stack, 64 * LEAF):
            found = self.inner.kernel(self.maker(part), kernels)
            if found is None:
                return None
            answer = found if answer is None else self.answers.combine(answer, found)
        return answer

    def parts(self, stack: Stack, elements: int = 32 * LEAF) -> Iterable[Stack]:
        """As the inner one, and no row in two of them where the maker must see rows."""
        if self.maker.by_rows:
            least = stack.block.tensor.rows_and_leaves
            elements = -(-elements // least) * least
        return self.inner.parts(stack, elements)
