"""The eight sub-tasks of the demo.

A prompt belongs to train, dev or test by its checksum, so the three never meet whatever the seeds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.eval.samples import split_of
from agentmerge.eval.tiny.domains.code import CODE
from agentmerge.eval.tiny.domains.domain import LEVELS, Domain, Level
from agentmerge.eval.tiny.domains.math import MATH
from agentmerge.eval.tiny.domains.memory import MEMORY
from agentmerge.eval.tiny.domains.tool import TOOL

if TYPE_CHECKING:
    from agentmerge.eval.samples import Sample, Split

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (CODE, MATH, MEMORY, TOOL)}


@dataclass(frozen=True, order=True)
class SubTask:
    """One domain at one level."""

    domain: str
    level: Level

    def __str__(self) -> str:
        return f"{self.domain} {self.level}"

    def samples(self, split: Split, count: int, seed: int = 0) -> list[Sample]:
        """Distinct samples of one split, the same for the same seed."""
        rng = random.Random(f"{self} {split} {seed}")
        drawn: dict[str, Sample] = {}
        while len(drawn) < count:
            sample = DOMAINS[self.domain].make(rng, self.level, split)
            if split_of(sample.prompt) == split:
                drawn[sample.prompt] = sample
        return list(drawn.values())

    def reward(self, sample: Sample, answer: str, *, finished: bool = True) -> float:
        """Between 0 and 1; 1 only for a right and finished answer, half of everything for one that was cut off."""
        value = DOMAINS[self.domain].reward(sample, answer)
        return value if finished else value / 2


SUB_TASKS = tuple(SubTask(domain, level) for domain in DOMAINS for level in LEVELS)
