"""Scores are exact shares with the standard errors of paired samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from agentmerge.eval.samples import Answer, Sample
from agentmerge.eval.score import Score, mark, score
from agentmerge.eval.tiny.tasks import SUB_TASKS, SubTask

if TYPE_CHECKING:
    from collections.abc import Sequence

EASY, HARD = SubTask("math", "easy"), SubTask("math", "hard")


class Clever:
    """Knows the right answers of math; finishes only some."""

    def __init__(self, finished: bool = True) -> None:
        self.finished = finished

    def answers(self, prompts: Sequence[str]) -> list[Answer]:
        known = {s.prompt: s.answer for task in SUB_TASKS for s in task.samples("test", 20)}
        return [Answer(known[prompt] if prompt.endswith("\n") else "?", self.finished) for prompt in prompts]


def test_right_and_finished_answers_count() -> None:
    found = score(Clever(), SUB_TASKS, "test", 20)
    assert {str(task): found.share(task) for task in SUB_TASKS if task.domain != "memory"} == {
        str(task): 1.0 for task in SUB_TASKS if task.domain != "memory"
    }
    assert found.share(SubTask("memory", "easy")) == 0
    assert found.mean() == pytest.approx(6 / 8)
    assert score(Clever(finished=False), SUB_TASKS, "test", 20).mean() == 0


def test_the_standard_error_is_that_of_a_mean_of_means() -> None:
    found = Score({EASY: (True, False, True, False), HARD: (True, True, True, True)})
    assert found.mean() == 0.75
    assert found.error([EASY]) == pytest.approx(math.sqrt(0.25 * 4 / 3 / 4))
    assert found.error() == pytest.approx(math.sqrt(0.25 * 4 / 3 / 4) / 2)


def test_paired_errors_see_only_the_difference() -> None:
    one = Score({EASY: (True, False, True, False)})
    assert one.error(against=one) == 0
    assert one.error(against=Score({EASY: (True, False, False, False)})) == pytest.approx(0.25)


def test_texts_alone_can_be_marked() -> None:
    asked = [Sample("1+1\n", "2"), Sample("1+2\n", "3"), Sample("1+3\n", "4")]
    assert mark(EASY, asked, [Answer("2", True), Answer("3", False), Answer("5", True)]) == (True, False, False)
