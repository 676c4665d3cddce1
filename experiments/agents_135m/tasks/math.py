"""Sums and differences of two numbers."""

from __future__ import annotations

import random

from tasks.numbers import judge_number
from tasks.task import Task

RANGES = {"easy": (1, 40), "hard": (10, 80)}


def make(rng: random.Random, level: str) -> tuple[str, int]:
    first, second = (rng.randint(*RANGES[level]) for _ in range(2))
    if rng.random() < 0.5:
        return asked(f"{first} + {second}"), first + second
    first, second = max(first, second), min(first, second)
    return asked(f"{first} - {second}"), first - second


def asked(term: str) -> str:
    return f"Compute {term}. Reply with the number only."


MATH = Task("You are a calculator.", 48, 8, make, judge_number, str)
