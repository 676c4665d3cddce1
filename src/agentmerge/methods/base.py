"""What a merging method is: a frozen value of its own settings that asks, then merges. Knows no files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from agentmerge.errors import RecipeError, complaints
from agentmerge.survey.overlap import THRESHOLD, Overlap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.survey.rounding import RoundingCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Cast, Stack


def no_truth_value(value: Any) -> Any:
    """The value, unless it is true or false, which Python and so pydantic would count as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("expected a number or text, not true or false (YAML reads yes, no, on and off so)")
    return value


class MergeMethod(BaseModel, ABC):
    """A merging rule and its settings; subclass it, give it a `name` Literal field, and register it.

    The engine folds what `ask` returns until it returns nothing, then calls `merge` on every stack.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Defaults that go with each of the names; a name that is absent has none."""
    about: ClassVar[Mapping[str, str]] = {}
    """A line on each of the names; where it is absent, the first line of the docstring."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of the names."""

    name: str
    """The name in a recipe; every method narrows it to a Literal of its own names."""
    threshold: float = Field(default=THRESHOLD, ge=0)
    """An element is changed by an agent iff |tau| > threshold, in float32."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" not in data:
            return data
        name = cls.aliases.get(data["name"], data["name"])
        return {**cls.presets.get(name, {}), **data, "name": name}

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        numeric = cls.model_fields[info.field_name or "name"].annotation in (int, float)
        return no_truth_value(value) if numeric else value

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names this class answers to, aliases left out."""
        annotation = cls.model_fields["name"].annotation
        return tuple(getattr(annotation, "__args__", ()))

    @property
    def reach(self) -> Literal["element", "tensor"]:
        """What one call of `merge` must see: any block of elements, or whole tensors."""
        return "element"

    @property
    def reads(self) -> tuple[str, ...]:
        """What is read beside the weights: () or ("importance",)."""
        return ()

    def check(self, agents: tuple[str, ...]) -> None:
        """Raise RecipeError where the settings do not fit the agents' names; the message starts with its field."""

    def seeded(self, seed: int) -> Self:
        """This method with the recipe's seed, where it is random and has none of its own."""
        return self

    @property
    def overlap(self) -> Overlap:
        """The overlap statistic at this method's threshold: every record reports it."""
        return Overlap(threshold=self.threshold)

    @classmethod
    def parse(cls, settings: Mapping[str, Any], where: str = "method") -> Self:
        """The method with these settings.

        Raises:
            RecipeError: a setting is unknown or out of range; the message starts with `where` and its path.
        """
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise RecipeError(complaints(error, f"{where}.", {"": cls.model_fields})) from None

    def varied(self, settings: Mapping[str, Any], where: str = "method") -> Self:
        """This method with some settings replaced, checked again; raises as `parse` does."""
        return self.parse({**self.model_dump(), **settings}, where)

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The statistics that must still be folded; () when ready to merge. It may be asked several times."""
        return ()

    @abstractmethod
    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The merged elements of one stack: pure, float32 [n], the definition in numpy."""

    def fused(self, stack: Stack, survey: Survey, cast: Cast, out: Array) -> RoundingCounts | None:
        """Merge, cast into `out` and count the rounding in one pass; None when no kernel fits this stack.

        A kernel is an optimisation: it equals `merge`, `Cast.apply` and `observe_rounding` bit for bit.
        """
        return None

    def agent_scales(self, survey: Survey) -> tuple[float, ...] | None:
        """Lambda of every agent for the record; None where the method has no one number per agent."""
        return None
