"""Retention is the projection of what was merged, or stored, on each agent's task vector."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agentmerge.survey.retention import StoredRetention, mean_retention, retention_sums, retentions
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import LEAF, Block, Cast, Stack, TensorSpec
from agentmerge.testing import random_stack


def stack_of(base: list[float], *agents: list[float]) -> Stack:
    arrays = [np.array(values, np.float32) for values in (base, *agents)]
    block = Block(TensorSpec("w", "F32", (len(base),)), 0, len(base))
    return Stack(block, arrays[0], tuple(arrays[1:]), tuple("abc"[: len(agents)]))


def test_by_hand() -> None:
    """tau_a = (2, 0), tau_b = (1, 1); the update (1, 2) keeps 2 / 4 of a and 3 / 2 of b."""
    stack = stack_of([1, 1], [3, 1], [2, 2])
    sums = retention_sums(stack, np.array([2, 3], np.float32))
    assert sums.total().tolist() == [2, 3, 4, 2]
    assert retentions(sums) == [0.5, 1.5]
    assert mean_retention([0.5, 1.5]) == 1.0


@pytest.mark.parametrize(("merged", "expected"), [([1, 1], [0, 0]), ([3, 1], [1, 1]), ([-1, 1], [-1, -1])])
def test_the_base_keeps_nothing_the_agent_everything_and_the_opposite_minus_everything(
    merged: list[float], expected: list[float]
) -> None:
    stack = stack_of([1, 1], [3, 1], [2, 1])
    found = retentions(retention_sums(stack, np.array(merged, np.float32)))
    assert found == [expected[0], 2 * expected[1]]


def test_an_agent_that_changed_nothing_has_none_and_takes_no_part_in_the_mean() -> None:
    stack = stack_of([1, 1], [3, 1], [1, 1])
    found = retentions(retention_sums(stack, np.array([2, 1], np.float32)))
    assert found == [0.5, None]
    assert mean_retention(found) == 0.5
    assert mean_retention([None, None]) is None


def test_what_was_stored_is_measured_in_its_own_numbers() -> None:
    stack = stack_of([1, 1], [3, 1])
    stored = np.array([2, 1], np.float16)
    sums = StoredRetention().observe(stack, np.array([9, 9], np.float32), stored, Cast("F16"))
    assert retentions(sums) == [0.5]


def test_any_division_gives_the_same_bits_and_json_keeps_them() -> None:
    stack, statistic = random_stack(0, elements=3 * LEAF + 9), StoredRetention()
    merged = stack.task_vectors().mean(axis=0) + stack.base.astype(np.float32)
    whole = statistic.observe(stack, merged, merged, Cast("F32"))
    survey = Survey()
    for piece in reversed(list(stack.pieces(LEAF))):
        part = merged[piece.block.start : piece.block.stop]
        survey.add(statistic, "w", statistic.observe(piece, part, part, Cast("F32")))
    again = statistic.answers.decode(json.loads(json.dumps(statistic.answers.encode(survey.total(statistic)))))
    assert retentions(again) == retentions(survey.total(statistic)) == retentions(whole)
