"""Values looked up in lines of keys and values."""

# ruff: noqa: SIM905

from __future__ import annotations

import random
import re

from tasks.numbers import in_place, right_form
from tasks.task import RIGHT, Task, Verdict, partly

KEYS = (
    "fox owl cat dog bear wolf deer frog crab duck goat hawk lion mole moth newt pony seal swan toad "
    "apple lemon peach grape melon plum corn bean rice leek desk lamp chair table couch shelf clock brush spoon plate "
    "ship boat train truck bike plane drum flute harp horn red blue green pink gold gray"
).split()
LINES = {"easy": (16, 24), "hard": (36, 44)}


def make(rng: random.Random, level: str) -> tuple[str, list[str]]:
    values = {key: str(rng.randint(100, 999)) for key in rng.sample(KEYS, rng.randint(*LINES[level]))}
    body = "\n".join(f"- {key}: {value}" for key, value in values.items())
    if level == "easy":
        key = rng.choice(list(values))
        return f"{body}\nWhat is the value of {key}? Reply with the number only.", [values[key]]
    first, second = rng.sample(list(values), 2)
    question = f"{body}\nWhat are the values of {first} and {second}? Reply with the two numbers only."
    return question, [values[first], values[second]]


def judge(text: str, answer: list[str]) -> Verdict:
    words = re.sub(r"[\s,.;]+|and", " ", text).split()
    if words == answer:
        return RIGHT
    some = sum(value in re.findall(r"\d+", text)[:4] for value in answer) / len(answer)
    return partly(0.1 * right_form(words, answer) + 0.4 * in_place(text, answer) + 0.1 * some)


MEMORY = Task("You look up values.", 408, 12, make, judge, " ".join)
