"""Memory: keys and values, and then one key, answered by its value.

    q42 a17 k88 a       ->      17

The hard prompts of dev and test are longer than any in training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.samples import Sample
from agentmerge.eval.tiny.domains.domain import Domain, matching

if TYPE_CHECKING:
    import random

    from agentmerge.eval.samples import Split
    from agentmerge.eval.tiny.domains.domain import Level

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAIRS = {("easy", False): (2, 4), ("hard", False): (5, 9), ("easy", True): (2, 4), ("hard", True): (10, 12)}
"""Fewest and most pairs, by level and by whether the sample is held out."""


def make(rng: random.Random, level: Level, split: Split) -> Sample:
    """Distinct keys of one letter, values of two digits."""
    keys = rng.sample(LETTERS, rng.randint(*PAIRS[level, split != "train"]))
    values = [f"{rng.randrange(100):02d}" for _ in keys]
    asked = rng.randrange(len(keys))
    pairs = [f"{key}{value}" for key, value in zip(keys, values, strict=True)]
    return Sample(" ".join([*pairs, keys[asked]]), values[asked])


def reward(sample: Sample, answer: str) -> float:
    """1 for the value, up to 0.3 for its right digits."""
    return 1.0 if answer == sample.answer else 0.3 * matching(answer, sample.answer)


MEMORY = Domain("memory", make, reward)
