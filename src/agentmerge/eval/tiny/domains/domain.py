"""What a domain of the demo is: how its prompts are made, and how its answers are scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from agentmerge.eval.samples import Sample, Split

Level = Literal["easy", "hard"]
LEVELS: tuple[Level, ...] = ("easy", "hard")


@dataclass(frozen=True)
class Domain:
    """How the prompts of one domain are made and its answers scored."""

    name: str
    make: Callable[[random.Random, Level, Split], Sample]
    """One random prompt of a level; the split may change its length, never its membership."""
    reward: Callable[[Sample, str], float]
    """1 for a right answer, at most 0.5 for a partly right one."""


def matching(left: str, right: str) -> float:
    """The share of places where two strings of one length agree; 0 for other lengths."""
    if len(left) != len(right) or not right:
        return 0.0
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(right)
