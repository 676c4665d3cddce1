"""What every method that wraps another shares: it hands each question on. Abstract."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import SerializeAsAny, field_validator, model_validator

from agentmerge.methods.base import Context, Dilution, MergeMethod, Told, Work
from agentmerge.methods.registry import resolve_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.kernels import Kernel
    from agentmerge.methods.base import Beside
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import Overlap, OverlapCounts
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec


class Wrapper(MergeMethod):
    """A method that changes what another one gets or gives; the other is the field `then`.

    Every hook is the inner method's, which sees the survey through `_inner`; a subclass overrides what it changes.
    """

    then: SerializeAsAny[MergeMethod]
    """The inner method: a name, or a mapping with a name and settings."""

    def _inner(self, survey: Survey) -> Survey:
        """The survey as the inner method must see it."""
        return survey

    def bind(self, context: Context) -> Self:
        """With the inner method bound."""
        inner = replace(context, where=f"{context.where}.then")
        return self.model_copy(update={"then": self.then.bind(inner)})

    @property
    def reads(self) -> tuple[Beside, ...]:
        """What the inner method reads."""
        return self.then.reads

    @property
    def overlap(self) -> Overlap:
        """At the inner method's threshold: a wrapper has no changes of its own."""
        return self.then.overlap

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """The inner method's."""
        return self.then.work(tensor, agents)

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What the inner method asks."""
        return self.then.ask(self._inner(survey))

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner method's, float32 [n]."""
        return self.then.merge(stack, self._inner(survey))

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's."""
        return self.then.loops

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's."""
        return self.then.kernel(stack, self._inner(survey))

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """What the inner method tells."""
        return self.then.told(self._inner(survey), names)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The inner method's."""
        return self.then.dilution(names, counts, energy)

    @field_validator("then", mode="before")
    @classmethod
    def _resolved(cls, value: Any) -> Any:
        return value if isinstance(value, MergeMethod) else resolve_method(value, "then")

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        return {"then": "task_arithmetic", **data} if isinstance(data, dict) else data


def chain_of(method: MergeMethod) -> list[MergeMethod]:
    """A method and what it wraps, outermost first."""
    inner = getattr(method, "then", None)
    return [method] if inner is None else [method, *chain_of(inner)]
