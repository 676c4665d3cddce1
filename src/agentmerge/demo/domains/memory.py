"""Memory: lines of keys and values, and then one key, answered by its value. Knows no models.

The hard prompts of dev and test are longer than any in training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.demo.domains.sample import Domain, Level, Sample, Split, matching

if TYPE_CHECKING:
    import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LINES = {("easy", False): (2, 4), ("hard", False): (5, 8), ("easy", True): (2, 4), ("hard", True): (9, 12)}
"""Fewest and most lines, by level and by whether the sample is held out."""


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Distinct keys of two letters, values of three digits."""
    count = rng.randint(*LINES[level, split != "train"])
    keys: list[str] = []
    while len(keys) < count:
        key = rng.choice(LETTERS) + rng.choice(LETTERS)
        if key not in keys:
            keys.append(key)
    values = [f"{rng.randrange(1000):03d}" for _ in keys]
    asked = rng.randrange(count)
    lines = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
    return Sample("\n".join([*lines, f"{keys[asked]}?"]) + "\n", values[asked])


def reward(sample: Sample, answer: str) -> float:
    """1 for the value, up to 0.3 for its right digits."""
    return 1.0 if answer == sample.answer else 0.3 * matching(answer, sample.answer)


MEMORY = Domain("memory", make, reward)
