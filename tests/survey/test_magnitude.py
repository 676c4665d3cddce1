"""The k-th smallest magnitude by two counts is the one that sorting finds, however the elements were divided."""

from __future__ import annotations

import json
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import kernels
from agentmerge.survey.by_tensor import EVERYWHERE, ByTensor
from agentmerge.survey.magnitude import (
    LOW_BITS,
    MagnitudeHigh,
    MagnitudeLow,
    count_of,
    histogram,
    magnitude,
    magnitude_bits,
    ranked,
)
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import LEAF, Block, Stack, TensorSpec
from agentmerge.testing import random_stack

if TYPE_CHECKING:
    from agentmerge.tensors import Array

NUMBERS = [0.0, -0.0, 1e-45, 1e-40, 1.1754944e-38, 1e-5, 2e-5, 1.0, 1.0000001, 2.0, 65504.0, 3.4e38, float("inf")]
"""Neighbours, subnormals and both ends of float32."""


def stack_of(tau: Array, name: str = "w") -> Stack:
    agents, n = tau.shape
    base = np.zeros(n, np.float32)
    return Stack(Block(TensorSpec(name, "F32", (n,)), 0, n), base, tuple(tau), tuple("abcdef"[:agents]))


def kth(pieces: list[Stack], k: int) -> list[tuple[float, int]]:
    """Per agent the k-th smallest magnitude and how many elements have it, by the two folds."""
    high = MagnitudeHigh()
    first = reduce(high.answers.combine, map(high.observe, pieces))
    chosen = [ranked(found, k) for found in first]
    low = MagnitudeLow(ByTensor({EVERYWHERE: tuple(key for key, _ in chosen)}))
    second = reduce(low.answers.combine, map(low.observe, pieces))
    result = []
    for (key, rank), found in zip(chosen, second, strict=True):
        rest, _ = ranked(found, rank)
        result.append((magnitude(key, rest), count_of(found, rest)))
    return result


@given(
    values=st.lists(st.sampled_from(NUMBERS) | st.floats(width=32, allow_nan=False), min_size=1, max_size=60),
    cuts=st.sets(st.integers(1, 59)),
    order=st.randoms(use_true_random=False),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_every_rank_and_any_division_agree_with_sorting(
    values: list[float], cuts: set[int], order: Any, data: Any
) -> None:
    tau = np.array([values, [-value for value in reversed(values)]], np.float32)
    edges = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    pieces = [stack_of(tau[:, low:high]) for low, high in pairwise(edges)]
    order.shuffle(pieces)
    k = data.draw(st.integers(1, len(values)))
    for row, (found, equal) in zip(np.abs(tau), kth(pieces, k), strict=True):
        expected = np.sort(row)[k - 1]
        assert np.float32(found) == expected
        assert equal == int((row == expected).sum())


@pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "definitions"])
@pytest.mark.parametrize("k", [1, 1000, 4000, 3 * LEAF + 5])
def test_bfloat16_agents_with_many_equal_magnitudes(k: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(kernels, "choose", lambda *_: None)
    stack = random_stack(1, elements=3 * LEAF + 5, dtypes=("BF16",))
    pieces = list(stack.pieces(LEAF))
    for row, (found, equal) in zip(np.abs(stack.task_vectors()), kth(pieces, k), strict=True):
        assert np.float32(found) == np.sort(row)[k - 1]
        assert equal == int((row == np.float32(found)).sum())


def test_magnitudes_order_as_their_bits_do() -> None:
    values = np.array(sorted(NUMBERS), np.float32)
    assert (np.diff(magnitude_bits(values[None])[0]) >= 0).all()
    np.testing.assert_array_equal(magnitude_bits(values[None]), magnitude_bits(-values[None]))


def test_upper_and_lower_bits_make_the_magnitude_again() -> None:
    for value in NUMBERS:
        (bits,) = magnitude_bits(np.array([[value]], np.float32))[0].tolist()
        assert magnitude(bits >> LOW_BITS, bits & ((1 << LOW_BITS) - 1)) == np.float32(abs(value))


def test_a_histogram_counts_and_ranks() -> None:
    found = histogram(np.array([5, 2, 5, 9, 5]))
    assert [array.tolist() for array in found] == [[2, 5, 9], [1, 3, 1]]
    assert [ranked(found, k) for k in (1, 2, 3, 4, 5)] == [(2, 1), (5, 1), (5, 2), (5, 3), (9, 1)]
    assert [count_of(found, key) for key in (2, 3, 5)] == [1, 0, 3]
    assert [array.tolist() for array in histogram(np.array([], np.int64))] == [[], []]


def test_an_agent_without_a_bin_is_not_counted() -> None:
    low = MagnitudeLow(ByTensor({EVERYWHERE: (-1, 0)}))
    nothing, zeros = low.observe(stack_of(np.zeros((2, 3), np.float32)))
    assert nothing[0].tolist() == []
    assert [array.tolist() for array in zeros] == [[0], [3]]


def test_answers_per_tensor_are_kept_where_asked() -> None:
    stacks = [stack_of(np.array([[1, 2]], "f4"), "v"), stack_of(np.array([[4, 8, 8]], "f4"), "w")]
    for by_tensor in (False, True):
        survey, question = Survey(), MagnitudeHigh(by_tensor)
        for stack in stacks:
            survey.add(question, stack.block.tensor.name, question.observe(stack))
        assert int(survey.total(question)[0][1].sum()) == 5
        if by_tensor:
            assert {name: int(found[0][1].sum()) for name, found in survey.every(question).items()} == {"v": 2, "w": 3}
        else:
            with pytest.raises(KeyError):
                survey.at("v", question)
    assert MagnitudeLow(ByTensor({"v": (1,), "w": (2,)})).per_tensor
    assert not MagnitudeLow(ByTensor({EVERYWHERE: (1,)})).per_tensor


def test_json_keeps_the_counts() -> None:
    for question in (MagnitudeHigh(), MagnitudeLow(ByTensor({EVERYWHERE: (0, 0, 0)}))):
        answer = question.observe(random_stack(0, elements=500))
        again = question.answers.decode(json.loads(json.dumps(question.answers.encode(answer))))
        for mine, other in zip(answer, again, strict=True):
            np.testing.assert_array_equal(mine, other)
