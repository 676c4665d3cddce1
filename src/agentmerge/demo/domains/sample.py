"""One prompt with its right answer, and which split a prompt belongs to. Knows no domain."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Split = Literal["train", "dev", "test"]
Level = Literal["easy", "hard"]
LEVELS: tuple[Level, ...] = ("easy", "hard")
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and an answer that would be right."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Domain:
    """How the prompts of one domain are made and its answers scored."""

    name: str
    make: Callable[[random.Random, Level, Split], Sample]
    """One random prompt of a level; the split may change its length, never its membership."""
    reward: Callable[[Sample, str], float]
    """1 for a right answer, at most 0.5 for a partly right one."""


def split_of(prompt: str) -> Split:
    """Which split a prompt belongs to: of ten prompts one is dev, one test, by checksum."""
    return {0: "dev", 1: "test"}.get(zlib.crc32(prompt.encode()) % 10, "train")  # type: ignore[return-value]


def matching(left: str, right: str) -> float:
    """The share of places where two strings of one length agree; 0 for other lengths."""
    if len(left) != len(right) or not right:
        return 0.0
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(right)
