"""Exact-match scores of an agent on the sub-tasks, with standard errors. Knows no files and no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentmerge.demo.tasks import SUB_TASKS, SubTask, reward, samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.demo.domains.sample import Split


class Answers(Protocol):
    """Whatever answers prompts: (text, finished) for each."""

    def answers(self, prompts: Sequence[str]) -> list[tuple[str, bool]]:
        """One answer per prompt."""
        ...


@dataclass(frozen=True)
class Score:
    """Which samples of every sub-task an agent got right: the same samples for every agent."""

    right: dict[SubTask, tuple[bool, ...]]

    def share(self, task: SubTask) -> float:
        """Right answers of one sub-task, 0 to 1."""
        return sum(self.right[task]) / len(self.right[task])

    def mean(self, tasks: Iterable[SubTask] | None = None) -> float:
        """The plain mean over sub-tasks, all by default."""
        shares = [self.share(task) for task in (self.right if tasks is None else tasks)]
        return sum(shares) / len(shares)

    def error(self, tasks: Iterable[SubTask] | None = None, against: Score | None = None) -> float:
        """Standard error of `mean`, or of the difference to another agent's mean on the same samples."""
        chosen = list(self.right if tasks is None else tasks)
        variance = 0.0
        for task in chosen:
            other = against.right[task] if against else (False,) * len(self.right[task])
            variance += _variance_of_mean([a - b for a, b in zip(self.right[task], other, strict=True)])
        return math.sqrt(variance) / len(chosen)


def score(agent: Answers, split: Split, count: int, tasks: Sequence[SubTask] = SUB_TASKS, seed: int = 0) -> Score:
    """Ask `count` prompts of every sub-task."""
    right = {}
    for task in tasks:
        asked = samples(task, split, count, seed)
        answers = agent.answers([sample.prompt for sample in asked])
        right[task] = tuple(
            reward(task, sample, text, finished=finished) == 1
            for sample, (text, finished) in zip(asked, answers, strict=True)
        )
    return Score(right)


def _variance_of_mean(values: Sequence[int]) -> float:
    n, mean = len(values), sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / max(n - 1, 1) / n
