"""Exact-match scores from the texts of answers, with standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from agentmerge.eval.samples import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.eval.samples import Answer, Answers, Sample, Split

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Score(Generic[T]):
    """Which samples of every task a model got right: the same samples for every model."""

    right: dict[T, tuple[bool, ...]]

    def share(self, task: T) -> float:
        """Right answers of one task, 0 to 1."""
        return sum(self.right[task]) / len(self.right[task])

    def mean(self, tasks: Iterable[T] | None = None) -> float:
        """The plain mean over tasks, all by default."""
        shares = [self.share(task) for task in (self.right if tasks is None else tasks)]
        return sum(shares) / len(shares)

    def error(self, tasks: Iterable[T] | None = None, against: Score[T] | None = None) -> float:
        """Standard error of `mean`, or of the difference to another model's mean on the same samples."""
        chosen = list(self.right if tasks is None else tasks)
        variance = 0.0
        for task in chosen:
            other = against.right[task] if against else (False,) * len(self.right[task])
            variance += _variance_of_mean([a - b for a, b in zip(self.right[task], other, strict=True)])
        return math.sqrt(variance) / len(chosen)


def score(model: Answers, tasks: Sequence[T], split: Split, count: int, seed: int = 0) -> Score[T]:
    """Ask `count` prompts of every task, and mark the answers."""
    right = {}
    for task in tasks:
        asked = task.samples(split, count, seed)
        right[task] = mark(task, asked, model.answers([sample.prompt for sample in asked]))
    return Score(right)


def mark(task: Task, asked: Sequence[Sample], answers: Sequence[Answer]) -> tuple[bool, ...]:
    """Which of these answers, one for each sample, are right and finished."""
    return tuple(
        task.reward(sample, answer.text, finished=answer.finished) == 1
        for sample, answer in zip(asked, answers, strict=True)
    )


def _variance_of_mean(values: Sequence[int]) -> float:
    n, mean = len(values), sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / max(n - 1, 1) / n
