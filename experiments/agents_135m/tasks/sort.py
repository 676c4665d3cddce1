"""Three or five numbers in ascending order."""

from __future__ import annotations

import random

from tasks.numbers import in_place, right_form
from tasks.task import RIGHT, Task, Verdict, partly

COUNTS = {"easy": 3, "hard": 5}


def make(rng: random.Random, level: str) -> tuple[str, list[str]]:
    numbers = rng.sample(range(1, 100), COUNTS[level])
    shown = " ".join(map(str, numbers))
    question = f"Sort in ascending order: {shown}\nReply with the numbers only."
    return question, [str(number) for number in sorted(numbers)]


def judge(text: str, answer: list[str]) -> Verdict:
    words = text.split()
    if words == answer:
        return RIGHT
    same = sorted(words) == sorted(answer)
    return partly(0.1 * right_form(words, answer) + 0.1 * same + 0.4 * in_place(text, answer))


SORT = Task("You sort numbers.", 64, 20, make, judge, " ".join)
