"""Tree sums are the same bits however the leaves were divided, and near the exact sum."""

from __future__ import annotations

import json
from itertools import pairwise, permutations
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.survey.sums import TreeSums, TreeSumsOf, leaf_sums, tree_sums
from agentmerge.tensors import LEAF, RUNNING

if TYPE_CHECKING:
    from agentmerge.tensors import Array

SIZES = [0, 1, 63, RUNNING, LEAF - 1, LEAF, LEAF + 1, 7 * LEAF + 5, 8 * LEAF]


def numbers(seed: int, elements: int, rows: int = 2) -> Array:
    """Of many magnitudes and both signs, so that another order would give other bits."""
    rng = np.random.default_rng(seed)
    values: Array = rng.standard_normal((rows, elements)) * 10.0 ** rng.integers(-6, 6, (rows, elements))
    return values


def by_recursion(values: Array) -> float:
    """The head of sums.py for one row: fold the lanes of each leaf in halves, then join neighbouring nodes."""
    leaves = []
    for start in range(0, values.size, LEAF):
        lanes = [0.0] * RUNNING
        for i, value in enumerate(values[start : start + LEAF].tolist()):
            lanes[i % RUNNING] += value
        while len(lanes) > 1:
            lanes = [a + b for a, b in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :], strict=True)]
        leaves.append(lanes[0])
    total, start = 0.0, 0
    while start < len(leaves):  # the largest complete trees from the left
        size = 1
        while size * 2 <= len(leaves) - start and start % (size * 2) == 0:
            size *= 2
        nodes = leaves[start : start + size]
        while len(nodes) > 1:
            nodes = [a + b for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
        total, start = total + nodes[0], start + size
    return total


@pytest.mark.parametrize("elements", SIZES)
def test_the_order_of_the_additions_is_the_written_one(elements: int) -> None:
    values = numbers(elements, elements)
    assert tree_sums(values, "w", 0).total().tolist() == [by_recursion(row) for row in values]


@given(
    seed=st.integers(0, 1000),
    elements=st.sampled_from(SIZES),
    cuts=st.sets(st.integers(1, 7)),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_any_division_at_leaf_edges_in_any_order_gives_identical_bits(
    seed: int, elements: int, cuts: set[int], order: Any
) -> None:
    values = numbers(seed, elements)
    edges = sorted({0, elements, *(cut * LEAF for cut in cuts if cut * LEAF < elements)})
    parts = [tree_sums(values[:, low:high], "w", low) for low, high in pairwise(edges)]
    order.shuffle(parts)
    while len(parts) > 1:  # in any tree of combinations, not from one end only
        left, right = parts.pop(order.randrange(len(parts))), parts.pop(order.randrange(len(parts)))
        parts.append(TreeSumsOf().combine(left, right))
    if parts:
        whole = tree_sums(values, "w", 0)
        assert parts[0] == whole
        assert parts[0].total().tobytes() == whole.total().tobytes()


@given(seed=st.integers(0, 10_000), elements=st.sampled_from(SIZES))
@settings(max_examples=30, deadline=None)
def test_the_sum_is_near_the_exact_one(seed: int, elements: int) -> None:
    """Within the bound of pairwise sums: about 32 + 6 + 3 additions deep."""
    values = numbers(seed, elements)
    for row, found in zip(values, tree_sums(values, "w", 0).total(), strict=True):
        assert abs(found - fsum(row)) <= 48 * 2.0**-53 * fsum(abs(row))


@given(seed=st.integers(0, 10_000), elements=st.sampled_from(SIZES))
@settings(max_examples=20, deadline=None)
def test_json_keeps_every_bit(seed: int, elements: int) -> None:
    sums = tree_sums(numbers(seed, elements), "w", 0) + tree_sums(numbers(seed + 1, LEAF + 7) * 1e-310, "v", 0)
    again = TreeSumsOf().decode(json.loads(json.dumps(TreeSumsOf().encode(sums))))
    assert again == sums
    assert again.total().tobytes() == sums.total().tobytes()


def test_a_part_of_one_tensor_does_not_join_anothers() -> None:
    ones = np.ones((1, LEAF))
    sums = tree_sums(ones, "a", 0) + tree_sums(ones, "b", LEAF)
    assert {name: set(found) for name, found in sums.nodes.items()} == {"a": {(0, 0)}, "b": {(0, 1)}}
    joined = sums + tree_sums(ones, "b", 0)
    assert set(joined.nodes["b"]) == {(1, 0)}


def test_tensors_are_added_in_the_order_of_their_names() -> None:
    parts = {name: tree_sums(np.array([[value]]), name, 0) for name, value in (("a", 1e16), ("b", 3.0), ("c", -1e16))}
    expected = (1e16 + 3.0) + -1e16
    assert expected == 4 != (1e16 + -1e16) + 3.0
    for order in permutations("abc"):
        total = TreeSums(1)
        for name in order:
            total += parts[name]
        assert total.total().tolist() == [expected]


def test_one_tensor_by_itself() -> None:
    sums = tree_sums(np.array([[1.0], [2.0]]), "a", 0) + tree_sums(np.array([[3.0], [4.0]]), "b", 0)
    assert sums.total().tolist() == [4, 6]
    assert sums.of("b").total().tolist() == [3, 4]
    assert sums.of("c").total().tolist() == [0, 0]


def test_adding_leaves_the_parts_alone() -> None:
    left, right = (tree_sums(np.ones((1, LEAF)), "w", start) for start in (0, LEAF))
    before = {**left.nodes["w"]}, {**right.nodes["w"]}
    assert (left + right).total() == 2 * LEAF
    assert (left.nodes["w"], right.nodes["w"]) == before


def test_leaves_of_nothing_and_of_a_short_rest() -> None:
    assert leaf_sums(np.zeros((3, 0))).shape == (0, 3)
    assert leaf_sums(np.ones((2, LEAF + 3))).tolist() == [[LEAF, LEAF], [3, 3]]
    assert tree_sums(np.zeros((3, 0)), "w", 0) == TreeSums(3)


def test_infinities_come_through() -> None:
    values = np.zeros((2, LEAF + 1))
    values[0, 5], values[1, LEAF] = np.inf, -np.inf
    assert tree_sums(values, "w", 0).total().tolist() == [np.inf, -np.inf]
