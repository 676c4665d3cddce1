"""Run a program of the demo's own list language. Never Python's eval: a program is data with a few known words.

x.drop(2).add(13).rev()        x is a list of whole numbers

rev() sort()                   turn around; sort
take(n) drop(n)                the first n; all but the first n
add(n) mul(n)                  to every number
gt(n) lt(n)                    keep the numbers greater, less than n
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Numbers = list[int]
LONGEST, MOST_STEPS = 200, 12
WITHOUT: dict[str, Callable[[Numbers], Numbers]] = {"rev": lambda x: x[::-1], "sort": sorted}
WITH: dict[str, Callable[[Numbers, int], Numbers]] = {
    "take": lambda x, n: x[:n],
    "drop": lambda x, n: x[n:],
    "add": lambda x, n: [value + n for value in x],
    "mul": lambda x, n: [value * n for value in x],
    "gt": lambda x, n: [value for value in x if value > n],
    "lt": lambda x, n: [value for value in x if value < n],
}
_STEP = re.compile(r"\.([a-z]{2,4})\(([0-9]{0,2})\)", re.ASCII)


class ProgramError(ValueError):
    """The text is no program."""


def run(program: str, numbers: Numbers) -> Numbers:
    """What a program makes of a list.

    Raises:
        ProgramError: it is no program, or too long.
    """
    for name, argument in parse(program):
        numbers = WITHOUT[name](numbers) if argument is None else WITH[name](numbers, argument)
    return numbers


def parse(program: str) -> list[tuple[str, int | None]]:
    """The steps of a program: word and number, None for a word without.

    Raises:
        ProgramError: it is no program, or too long.
    """
    if len(program) > LONGEST or not program.startswith("x"):
        raise ProgramError(f"no program: {program[:40]!r}")
    steps: list[tuple[str, int | None]] = []
    place = 1
    while place < len(program):
        found = _STEP.match(program, place)
        if found is None or len(steps) == MOST_STEPS:
            raise ProgramError(f"no step at {place}: {program[place : place + 20]!r}")
        name, digits = found.groups()
        if name not in (WITH if digits else WITHOUT):
            raise ProgramError(f"no such step: {found[0]!r}")
        steps.append((name, int(digits) if digits else None))
        place = found.end()
    return steps
