"""What a program of two or three lines prints."""

from __future__ import annotations

import random

from tasks.numbers import judge_number
from tasks.task import Task


def make(rng: random.Random, level: str) -> tuple[str, int]:
    if level == "easy":
        x = numbers(rng, 4, 6)
        place = rng.randrange(len(x))
        return asked(f"x = {x}\nprint(x[{place}])"), x[place]
    lists = {"x": numbers(rng, 4, 5), "y": numbers(rng, 4, 5)}
    name = rng.choice("xy")
    chosen = lists[name]
    term, value = rng.choice(
        [
            (f"max({name})", max(chosen)),
            (f"min({name})", min(chosen)),
            (f"{name}[-1]", chosen[-1]),
            (f"{name}[-2]", chosen[-2]),
        ]
    )
    return asked(f"x = {lists['x']}\ny = {lists['y']}\nprint({term})"), value


def numbers(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randint(1, 99) for _ in range(rng.randint(least, most))]


def asked(program: str) -> str:
    return f"{program}\nWhat is printed? Reply with the output only."


CODE = Task("You run Python.", 88, 8, make, judge_number, str)
