"""Prompts, answers and tasks as text: what generating and scoring have in common."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and an answer that would be right."""

    prompt: str
    answer: str


class Answer(NamedTuple):
    """What was answered to one prompt."""

    text: str
    finished: bool
    """False where it was cut off."""


class Answers(Protocol):
    """Whatever answers prompts."""

    def answers(self, prompts: Sequence[str]) -> list[Answer]:
        """One answer per prompt."""
        ...


class Task(Hashable, Protocol):
    """Prompts of one kind, and what an answer to them is worth."""

    def samples(self, split: Split, count: int, seed: int = 0) -> list[Sample]:
        """Distinct samples of one split, the same for the same seed; fewer are their beginning."""
        ...

    def reward(self, sample: Sample, answer: str, *, finished: bool = True) -> float:
        """Between 0 and 1; 1 only for a right and finished answer."""
        ...


def split_of(prompt: str) -> Split:
    """Which split a prompt belongs to: of ten prompts one is dev, one test, by checksum."""
    return {0: "dev", 1: "test"}.get(zlib.crc32(prompt.encode()) % 10, "train")  # type: ignore[return-value]
