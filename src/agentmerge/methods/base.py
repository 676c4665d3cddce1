"""What a merging method is: a frozen value of its own settings that asks, then merges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentmerge.errors import RecipeError, problems_of
from agentmerge.frozen import Settings
from agentmerge.methods.names import hinted
from agentmerge.survey.overlap import THRESHOLD, Overlap
from agentmerge.survey.statistic import AfterStatistic, Statistic
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.errors import Note, Problem
    from agentmerge.kernels import Kernel
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Array, Reach, Stack, TensorSpec


Precision = Literal["float32", "float64"]
Beside = Literal["importance", "grams", "keep"]
"""What may be read beside the weights, by the name of its field in a recipe: of every agent; of the base (`keep`)."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a method learns from its recipe beside its own settings."""

    seed: int
    """Of a random method that has none of its own."""
    weights: Mapping[str, float]
    """Every agent's weight by its name."""
    keep: bool = False
    """Whether it says what the base must keep."""
    where: str = field(default="method", compare=False)
    """The method's path in the recipe, which complaints start with."""


@dataclass(frozen=True, slots=True)
class Work:
    """What merging one tensor takes."""

    reach: Reach = "element"
    """What one call of `merge` must see: any block of elements, whole rows (of the last axis), whole matrices (of the
    last two), or all."""
    flop: float = 0.0
    """0 where reading takes longer than computing."""
    bytes: int = 0
    """Memory beside the blocks."""
    share: float = 0.0
    """What it takes of all processors, or of a device, and of their memory: the engine has no more in work than 1 in
    all, so what needs everything, 1, is done one tensor at a time. 0 is what every thread may do."""
    precision: Precision = "float32"
    """Of the numbers that the `flop` are done with."""
    device: str = "cpu"
    """Where the `flop` are done: "cpu", or the name of an accelerator."""
    draft: str = ""
    """What a fold's merge of the tensor is kept under (Survey.kept), where computing it again takes longer."""
    times: int = 1
    """How often a merge computes it: again in the last pass what a fold measured and did not keep."""
    gram: tuple[int, ...] = ()
    """Shape of the Gram matrix of its inputs that merging it needs of every agent: [in, in], or [experts, in, in] of a
    stack; () for none. The tensor must be seen whole then."""
    keep: tuple[int, ...] = ()
    """The same of the base's Gram matrix, which may be missing."""
    problem: Problem | None = None
    """Why it can't be done on this machine; a merge is refused before it starts."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a method tells about a merge; whatever its survey does not hold yet, as in a probe, is left out."""

    scales: tuple[float, ...] | None = None
    """Lambda of every agent; None where the method has no one number per agent, or does not know it yet."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """What it found out about the agents, as JSON data."""
    notes: tuple[Note, ...] = ()
    """What only the finished merge can show."""


@dataclass(frozen=True, slots=True, eq=False)
class Dilution:
    """What a method makes of each agent's change, as far as a full probe can tell; NaN where it can't."""

    multiplier: Array
    """Of an element that only this agent changed, on average; float64 [agents]."""
    retention: Array
    """<merged - base, tau> / <tau, tau> before the output cast; float64 [agents]."""
    note: str
    """What the numbers come from."""
    linear: bool = False
    """Whether merged - base is linear in the task vectors, so that what they are on average it is, too."""

    @classmethod
    def unknown(cls, agents: int, note: str) -> Self:
        """No number at all."""
        return cls(np.full(agents, np.nan), np.full(agents, np.nan), note)


class MergeMethod(Settings, ABC):
    """A merging rule and its settings; subclass it, give it a `name` Literal field, and register it.

    The engine folds the statistics that `ask` returns until it returns none, then calls `merge` on every stack.
    """

    model_config = ConfigDict(validate_default=True)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Defaults that go with each of the names; a name that is absent has none."""
    about: ClassVar[Mapping[str, str]] = {}
    """A line on each of the names; where it is absent, the first line of the docstring."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of the names."""

    reports: ClassVar[bool] = False
    """Whether it tells facts while it merges (survey/reported.py), so that its merge is never taken from a draft."""

    name: str
    """The name in a recipe; every method narrows it to a Literal of its own names."""

    def bind(self, context: Context) -> Self:
        """This method in a recipe: with the recipe's seed where it is random and has none of its own.

        Raises:
            RecipeError: the settings do not fit the agents.
        """
        return self

    @property
    def reads(self) -> tuple[Beside, ...]:
        """What is read beside the weights: importance, which is in `Stack.extra` then; grams and keep, see `Work`."""
        return ()

    @property
    def overlap(self) -> Overlap:
        """The overlap counts that every record reports, at the method's threshold where it has one."""
        return Overlap()

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """What merging this tensor of so many agents takes."""
        return Work()

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What this method must know, and the survey does not hold yet; it may be asked several times.

        Returns:
            Statistics, which are folded before it merges: it is ready when none is left. And AfterStatistics, which are
            answered while it merges and are for `told` alone.
        """
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

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """What the record and its reader are told.

        Args:
            survey: all answers there are; after a probe, those of the first fold alone.
            names: of the agents, in the order of the answers.
        """
        return Told()

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """What this method would make of each agent's change, told before any merge, agents of equal weight.

        Args:
            names: of the agents.
            counts: the overlap over all merged elements.
            energy: sums of squares and products, of a sample.
        """
        return Dilution.unknown(len(names), "the method does not say")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names this class answers to, aliases left out."""
        annotation = cls.model_fields["name"].annotation
        return tuple(getattr(annotation, "__args__", ()))

    @classmethod
    def parse(cls, settings: Mapping[str, Any], where: str = "method") -> Self:
        """The method with these settings.

        Raises:
            RecipeError: a setting is unknown or out of range; the message starts with `where` and its path.
        """
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise RecipeError(*map(hinted, problems_of(error, f"{where}.", {"": cls.model_fields}))) from None

    def varied(self, settings: Mapping[str, Any], where: str = "method") -> Self:
        """This method with some settings changed, checked again.

        A setting that holds settings, such as an inner method, is changed setting by setting too: one that is not named
        stays. An inner method of another name comes with its own defaults.

        Raises:
            RecipeError: as `parse` does; the path of a setting of an inner method is `where`.then.SETTING.
        """
        changed = {name: _onto(getattr(self, name, None), new, f"{where}.{name}") for name, new in settings.items()}
        return self.parse({**self.model_dump(), **changed}, where)

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" not in data:
            return data
        name = cls.aliases.get(data["name"], data["name"])
        return {**cls.presets.get(name, {}), **data, "name": name}


class Selecting(MergeMethod):
    """A method that asks which agents changed an element; abstract."""

    threshold: float = Field(default=THRESHOLD, ge=0)
    """An element is changed by an agent iff |tau| > threshold, in float32."""

    @property
    def overlap(self) -> Overlap:
        """The counts at this threshold."""
        return Overlap(threshold=self.threshold)


def _onto(held: Any, new: Any, where: str) -> Any:
    """What a setting becomes that holds `held` where `new` is written."""
    if isinstance(held, MergeMethod):
        return _method_onto(held, {"name": new} if isinstance(new, str) else new, where)
    held = held.model_dump() if isinstance(held, BaseModel) else held
    if isinstance(held, Mapping) and isinstance(new, Mapping):
        return {**held, **{key: _onto(held.get(key), value, f"{where}.{key}") for key, value in new.items()}}
    return new


def _method_onto(held: MergeMethod, new: Any, where: str) -> Any:
    if not isinstance(new, Mapping):
        return new
    name = new.get("name", held.name)
    if held.aliases.get(name, name) != held.name:
        return new
    return held.varied({field: value for field, value in new.items() if field != "name"}, where)


def before_merging(asked: Iterable[Foldable[Any]]) -> tuple[Statistic[Any], ...]:
    """Of what a method asks, what must be folded before it merges; () when it is ready."""
    return tuple(question for question in asked if isinstance(question, Statistic))


def while_merging(asked: Iterable[Foldable[Any]]) -> tuple[AfterStatistic[Any], ...]:
    """Of what a method asks, what is answered while it merges."""
    return tuple(question for question in asked if isinstance(question, AfterStatistic))


def added(base: Array, update: Array) -> Array:
    """float32(base) + update [n]; the base's own bits where the update is 0, so that -0.0 stays -0.0."""
    values = as_float32(base)
    return np.where(update == 0, values, values + update)
