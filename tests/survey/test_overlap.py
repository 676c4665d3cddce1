"""The overlap counts are what a loop over single elements counts, however the elements are divided."""

from __future__ import annotations

import itertools
import json
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.survey.integrity import Integrity
from agentmerge.survey.observe import observe
from agentmerge.survey.overlap import Overlap, OverlapCounts, changed_mask
from agentmerge.tensors import LEAF, Block, Stack
from agentmerge.testing import random_stack

if TYPE_CHECKING:
    from collections.abc import Iterable

DTYPES = [("BF16",), ("F16",), ("F32",), ("BF16", "F32", "F16"), ("F64", "BF16")]


def by_hand(stack: Stack, threshold: float) -> OverlapCounts:
    agents, limit = len(stack.agents), np.float32(threshold)
    exactly, different = np.zeros((agents, agents), np.int64), np.zeros(agents, np.int64)
    for i in range(stack.base.size):
        base = np.float32(stack.base[i])
        values = [np.float32(agent[i]) for agent in stack.agents]
        who = [t for t in range(agents) if abs(np.float32(values[t] - base)) > limit]
        for t in who:
            exactly[t, len(who) - 1] += 1
        for t in range(agents):
            different[t] += values[t].tobytes() != base.tobytes()
    return OverlapCounts(stack.base.size, exactly, different)


def parts_of(stack: Stack, edges: Iterable[int]) -> list[Stack]:
    ends = sorted({0, stack.base.size, *edges})
    return [
        Stack(
            Block(stack.block.tensor, a, b),
            stack.base[a:b],
            tuple(agent[a:b] for agent in stack.agents),
            stack.names,
        )
        for a, b in itertools.pairwise(ends)
    ]


@given(
    seed=st.integers(0, 9999),
    agents=st.integers(1, 6),
    elements=st.sampled_from([0, 1, 63, 130]),
    dtypes=st.sampled_from(DTYPES),
    threshold=st.sampled_from([0.0, 1e-5, 0.02, 1.0]),
)
@settings(max_examples=50, deadline=None)
def test_definition_and_kernel_count_what_a_loop_counts(
    seed: int, agents: int, elements: int, dtypes: tuple[str, ...], threshold: float
) -> None:
    stack = random_stack(seed, elements=elements, agents=agents, dtypes=dtypes)
    question = Overlap(threshold)
    expected = by_hand(stack, threshold)
    assert question.observe(stack) == expected
    assert observe([question, Integrity()], stack)[question] == expected


@given(seed=st.integers(0, 9999), edges=st.lists(st.integers(0, 4), max_size=4), order=st.randoms())
@settings(max_examples=25, deadline=None)
def test_any_division_taken_in_any_order_gives_the_same(seed: int, edges: list[int], order: object) -> None:
    stack = random_stack(seed, elements=4 * LEAF + 17, dtypes=("BF16", "F32"))
    question = Overlap()
    whole = question.observe(stack)
    answers = [question.observe(part) for part in parts_of(stack, (edge * LEAF for edge in edges))]
    order.shuffle(answers)  # type: ignore[attr-defined]
    total = answers[0]
    for answer in answers[1:]:
        total = question.answers.combine(total, answer)
    assert total == whole


def test_combine_is_associative_and_commutative() -> None:
    question = Overlap()
    a, b, c = (question.observe(random_stack(seed, elements=300)) for seed in range(3))
    left = question.answers.combine(question.answers.combine(a, b), c)
    assert left == question.answers.combine(a, question.answers.combine(b, c))
    assert question.answers.combine(a, b) == question.answers.combine(b, a)
    assert left != a


def test_answers_survive_json() -> None:
    question = Overlap()
    answer = question.observe(random_stack(4))
    assert question.answers.decode(json.loads(json.dumps(question.answers.encode(answer)))) == answer


def test_the_words_follow_from_the_counts() -> None:
    counts = OverlapCounts(100, np.array([[4, 1, 1], [0, 1, 1], [0, 0, 0]]), np.array([9, 2, 0]))
    assert counts.changed == (6, 2, 0)
    assert counts.unique == (4, 0, 0)
    assert counts.shared == (2, 2, 0)
    assert counts.density == (0.06, 0.02, 0.0)
    assert counts.ratio == (0.5, inf, 0.0)
    assert OverlapCounts(0, np.zeros((1, 1), np.int64), np.zeros(1, np.int64)).density == (0.0,)


def test_a_nan_difference_is_no_change_and_an_infinite_one_is() -> None:
    tau = np.array([[np.nan, np.inf, -np.inf, 0.0]], np.float32)
    assert changed_mask(tau, 1e-5).tolist() == [[False, True, True, False]]


def test_bits_that_differ_without_a_change_are_counted_as_different() -> None:
    stack = random_stack(0, elements=2, agents=1, dtypes=("F32",))
    zeros = np.array([0.0, 1.0], np.float32)
    stack = Stack(stack.block, zeros, (np.array([-0.0, 1.0], np.float32),), ("a",))
    counts = Overlap(0.0).observe(stack)
    assert counts.changed == (0,)
    assert counts.different.tolist() == [1]


@pytest.mark.parametrize("agents", [63, 64, 65, 70])
def test_more_agents_than_a_word_has_bits_are_counted_too(agents: int) -> None:
    stack = random_stack(1, elements=40, agents=agents)
    question = Overlap()
    assert observe([question], stack)[question] == by_hand(stack, 1e-5)
