"""What a domain is made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Answer = Any
"""What a domain judges by: a number, a list of words, a call, constraints."""


class Verdict(NamedTuple):
    """Of an answer: 1 and right, or partial credit of at most 0.6 and wrong."""

    reward: float
    exact: bool


RIGHT = Verdict(1.0, True)


def partly(reward: float) -> Verdict:
    return Verdict(reward, False)


@dataclass(frozen=True)
class Task:
    """One domain.

    Args:
        system: what the model is told it is.
        room: tokens of the longest prompt; longer ones are not used.
        length: tokens of the longest answer, its end included.
        make: question and answer of a level, from a stream of random numbers.
        judge: the verdict on a text.
        spell: a right answer as text.
    """

    system: str
    room: int
    length: int
    make: Callable[[random.Random, str], tuple[str, Answer]]
    judge: Callable[[str, Answer], Verdict]
    spell: Callable[[Answer], str]
