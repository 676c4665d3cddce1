"""What a suite is: items, the conversations that they are asked in, and what the answers are worth."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field, ValidationError

from agentmerge.errors import EvalError, Problem, did_you_mean, problems_of
from agentmerge.eval.request import JSON, Request, Response, Sampling
from agentmerge.frozen import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agentmerge.eval.data import Need

Domain = Literal["tool", "code", "memory", "instructions", "maths", "search", "demo", "own"]
Conversation: TypeAlias = Generator[Sequence[Request], list[Response], JSON]
"""How one item is asked: it yields requests that may be answered together, is sent their responses in their order, and
returns its output, plain data. A single turn yields once, n samples are one yield of n, a loop yields once a turn."""


@dataclass(frozen=True)
class Item:
    """One thing that is asked."""

    id: str
    """Known by it within its suite."""
    group: str
    """Its category or split; "" where there are none."""
    data: JSON


class Cell(NamedTuple):
    """What one item contributes to a metric: the metric's mean is sum(value x weight) / sum(weight)."""

    value: float
    """0 to 1."""
    weight: float = 1.0


@dataclass(frozen=True)
class Column:
    """A column of a table: the mean of one metric over some groups."""

    name: str
    metric: str
    label: str
    """As a table's head says it."""
    groups: tuple[str, ...] = ()
    """() takes all."""
    combine: Literal["items", "groups"] = "items"
    """The mean over all items, or the plain mean of the groups' means."""
    counts: bool = True
    """Whether it counts in means over columns; False of another reading of what a column before it scores."""


@dataclass(frozen=True)
class DataFile:
    """A data file that was read."""

    name: str
    origin: str
    """Where it comes from: a hub's data set, a package and its version."""
    sha256: str
    items: int


@dataclass(frozen=True)
class Given:
    """What a user gives for all suites at once."""

    data_dir: Path | None = None
    """Where data files lie."""
    tokenizer: str | None = None
    """Folder of the model's tokenizer, for suites that cut texts by tokens."""
    allow_code_execution: bool = False
    """Whether programs that the model wrote may be run."""


class SampledSettings(Settings):
    """Settings of a suite whose answers are drawn alike: a base for those of suites."""

    max_tokens: int = Field(default=1024, ge=1)
    """New tokens after which an answer is cut off."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Of the likeliest tokens those that have this share together."""
    top_k: int | None = Field(default=None, ge=1)
    """Of the likeliest tokens so many; null keeps all."""
    seed: int | None = None
    """Of the first sample, for generators that take one."""

    def sampling(self, stop: Sequence[str] = ()) -> Sampling:
        """As a request says it."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=tuple(stop),
            seed=self.seed,
        )


class Suite(ABC):
    """A benchmark. A subclass names what it is and needs; an instance has its settings and knows no model."""

    name: ClassVar[str]
    domain: ClassVar[Domain]
    settings_type: ClassVar[type[Settings]]
    """Every choice that is not the benchmark's own, each a field with its default."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    """Settings by the name of a preset; "paper" is there always."""

    settings: Any
    """Of that type."""
    folder: Path | None = None
    """Where it may keep what it finds out while it scores; the runner says."""

    def __init__(self, settings: Any, given: Given = Given()) -> None:
        self.settings = settings
        self.given = given

    @classmethod
    def make(cls, preset: str = "paper", given: Given = Given(), **settings: Any) -> Suite:
        """The suite with the settings of a preset, and those given beside it, which win.

        Raises:
            EvalError: no such preset or setting, or a value that a setting can't have.
        """
        if preset not in cls.presets:
            raise EvalError(f"{cls.name}: no preset '{preset}'", todo=did_you_mean(preset, cls.presets).strip())
        try:
            return cls(cls.settings_type.model_validate({**cls.presets[preset], **settings}), given)
        except ValidationError as error:
            raise EvalError(*problems_of(error, f"{cls.name}.", {"": cls.settings_type.model_fields})) from None

    def needs(self) -> Sequence[Need]:
        """The data files of the data folder that it reads."""
        return ()

    def requires(self) -> list[Problem]:
        """What is missing, data or a harness: its name, origin, schema and how to get it. [] where it can run."""
        return [problem for need in self.needs() for problem in need.missing(self.given)]

    @abstractmethod
    def items(self) -> list[Item]:
        """Every item, in the order of the data.

        Raises:
            EvalError: the data are not as they should be.
        """

    @abstractmethod
    def converse(self, item: Item) -> Conversation:
        """Ask one item. It keeps no state elsewhere and takes any answer, "" too: a killed run is replayed by it."""

    @abstractmethod
    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """What an output is worth, by metric; a metric that is not there does not count this item."""

    def score_all(self, items: Sequence[Item], outputs: Sequence[JSON]) -> list[dict[str, Cell]]:
        """The scores of all items; one that works in batches or in a child process overrides it."""
        return [self.score(item, output) for item, output in zip(items, outputs, strict=True)]

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """What a table shows of it."""

    def data_files(self) -> list[DataFile]:
        """What `items` reads."""
        return [need.file(self.given) for need in self.needs()]

    def versions(self) -> dict[str, str]:
        """The harnesses that it uses, by distribution."""
        return {}

    def scoring(self) -> dict[str, JSON]:
        """What it found out while it scored, for the record."""
        return {}


def limited(items: Iterable[Item], limit: int | None, seed: int = 0) -> list[Item]:
    """At most `limit` items of every group, evenly chosen; a smaller limit's are among a larger one's.

    Args:
        items: all of them; the choice keeps their order.
        limit: None takes all.
        seed: another one chooses others.
    """
    every = list(items)
    if limit is None:
        return every
    chosen: set[int] = set()
    for group in {item.group for item in every}:
        places = [place for place, item in enumerate(every) if item.group == group]
        chosen.update(sorted(places, key=lambda place: _draw(seed, every[place].id))[:limit])
    return [item for place, item in enumerate(every) if place in chosen]


def _draw(seed: int, item: str) -> str:
    return hashlib.sha256(f"{seed} {item}".encode()).hexdigest()
