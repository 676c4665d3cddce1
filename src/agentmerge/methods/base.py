"""What a merging method is: a frozen value of its own settings that asks, then merges. Knows no files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator

from agentmerge.errors import RecipeError, complaints
from agentmerge.frozen import Settings
from agentmerge.survey.overlap import THRESHOLD, Overlap
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.kernels import Kernel
    from agentmerge.survey.statistic import AfterStatistic, Statistic, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec


class MergeMethod(Settings, ABC):
    """A merging rule and its settings; subclass it, give it a `name` Literal field, and register it.

    The engine folds what `ask` returns until it returns nothing, then calls `merge` on every stack.
    """

    model_config = ConfigDict(validate_default=True)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Defaults that go with each of the names; a name that is absent has none."""
    about: ClassVar[Mapping[str, str]] = {}
    """A line on each of the names; where it is absent, the first line of the docstring."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of the names."""

    name: str
    """The name in a recipe; every method narrows it to a Literal of its own names."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" not in data:
            return data
        name = cls.aliases.get(data["name"], data["name"])
        return {**cls.presets.get(name, {}), **data, "name": name}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names this class answers to, aliases left out."""
        annotation = cls.model_fields["name"].annotation
        return tuple(getattr(annotation, "__args__", ()))

    def reach_of(self, tensor: TensorSpec) -> Literal["element", "tensor"]:
        """What one call of `merge` must see of this tensor: any block of elements, or all of it."""
        return "element"

    def cost(self, tensor: TensorSpec, agents: int) -> float:
        """FLOP of merging this tensor of so many agents; 0 where reading it takes longer than computing."""
        return 0.0

    def working_bytes(self, tensor: TensorSpec, agents: int) -> int:
        """Memory that merging this tensor takes beside its blocks, once however many workers there are."""
        return 0

    def accelerated(self) -> bool:
        """Whether what `cost` counts runs on a GPU here; RecipeError where the settings want one that is not there."""
        return False

    @property
    def reads(self) -> tuple[str, ...]:
        """What is read beside the weights: () or ("importance",)."""
        return ()

    def check(self, weights: Mapping[str, float]) -> None:
        """Raise RecipeError where the settings do not fit the agents, given as name to weight."""

    def seeded(self, seed: int) -> Self:
        """This method with the recipe's seed, where it is random and has none of its own."""
        return self

    @property
    def overlap(self) -> Overlap:
        """The overlap counts that every record reports, at the method's threshold where it has one."""
        return Overlap()

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

    @property
    def loops(self) -> tuple[str, ...]:
        """The compiled loops that `kernel` names, to make them ready early; what is missing is compiled when called."""
        return ("given",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """Compiled loops that cover the stack in order; None where the method has none for it.

        A kernel is an optimisation: it equals `merge`, `Cast.apply` and `observe_rounding` bit for bit. Which backend
        runs it, and whether the dtypes fit one, is not asked here.
        """
        return None

    def after(self) -> tuple[AfterStatistic[Any], ...]:
        """What to fold over the stored result, for `learned` and `advice`; kernels serve only where it has one too."""
        return ()

    def learned(self, survey: Survey, names: tuple[str, ...]) -> dict[str, Any]:
        """What the method found out about the agents, as JSON data for the record."""
        return {}

    def advice(self, survey: Survey) -> list[str]:
        """Warnings that only the finished merge can give."""
        return []

    def agent_scales(self, survey: Survey) -> tuple[float, ...] | None:
        """Lambda of every agent for the record; None where the method has no one number per agent."""
        return None


class Selecting(MergeMethod):
    """A method that asks which agents changed an element; abstract."""

    threshold: float = Field(default=THRESHOLD, ge=0)
    """An element is changed by an agent iff |tau| > threshold, in float32."""

    @property
    def overlap(self) -> Overlap:
        """The counts at this threshold."""
        return Overlap(threshold=self.threshold)


def added(base: Array, update: Array) -> Array:
    """float32(base) + update [n]; the base's own bits where the update is 0, so that -0.0 stays -0.0."""
    values = as_float32(base)
    return np.where(update == 0, values, values + update)
