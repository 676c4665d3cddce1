"""The eight sub-tasks of the demo and their samples. Knows no models.

A prompt belongs to train, dev or test by its checksum, so the three never meet whatever the seeds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentmerge.demo.domains.code import CODE
from agentmerge.demo.domains.math import MATH
from agentmerge.demo.domains.memory import MEMORY
from agentmerge.demo.domains.sample import LEVELS, Domain, Level, Sample, Split, split_of
from agentmerge.demo.domains.tool import TOOL

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (CODE, MATH, MEMORY, TOOL)}


@dataclass(frozen=True, order=True)
class SubTask:
    """One domain at one level."""

    domain: str
    level: Level

    def __str__(self) -> str:
        return f"{self.domain} {self.level}"


SUB_TASKS = tuple(SubTask(domain, level) for domain in DOMAINS for level in LEVELS)


def samples(task: SubTask, split: Split, count: int, seed: int = 0) -> list[Sample]:
    """Distinct samples of one split, the same for the same seed."""
    rng = random.Random(f"{task} {split} {seed}")
    found: dict[str, Sample] = {}
    while len(found) < count:
        sample = DOMAINS[task.domain].make(rng, task.level, split)
        if split_of(sample.prompt) == split:
            found[sample.prompt] = sample
    return list(found.values())


def reward(task: SubTask, sample: Sample, answer: str, *, finished: bool = True) -> float:
    """Between 0 and 1; 1 only for a right and finished answer, half of everything for one that was cut off."""
    value = DOMAINS[task.domain].reward(sample, answer)
    return value if finished else value / 2
