"""What a shared element gets, by hand on three agents: agreement, conflict, cancellation and importance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.methods.ram_shared import shared_update
from agentmerge.testing import assert_same_bits, random_stack

if TYPE_CHECKING:
    from agentmerge.tensors import Array

AGREE, CONFLICT, CANCEL, THREE, UNIMPORTANT = range(5)
TAUS = np.array(
    [
        [4, 6, 3, 6, 5],
        [2, -2, -3, -2, 1],
        [0, 0, 0, 2, 0],
    ],
    np.float32,
)
IMPORTANCE = [[1, 1, 1, 2, 0], [3, 1, 1, 0, 0], [9, 9, 9, 0, 9]]
"""Agent c's counts only where it changed the element."""


def update(stack_of: Any, shared: Any, power: float = 1.0, changed: Array | None = None) -> Array:
    stack = stack_of(np.zeros(TAUS.shape[1]), TAUS, importance=IMPORTANCE)
    return shared_update(stack, TAUS, TAUS != 0 if changed is None else changed, shared, power)


@pytest.mark.parametrize(
    ("shared", "power", "expected"),
    [
        ("mean", 1, [3, 2, 0, 2, 3]),
        ("mean", 0, [6, 4, 0, 6, 6]),
        ("mean", 0.5, [6 / 2**0.5, 4 / 2**0.5, 0, 6 / 3**0.5, 6 / 2**0.5]),
        ("sum", 1, [6, 4, 0, 6, 6]),
        ("elect", 1, [3, 6, 0, 4, 3]),  # -2 is outvoted; where the sum is 0 nobody is elected
        ("elect", 0, [6, 6, 0, 8, 6]),
        ("elect", 0.5, [6 / 2**0.5, 6, 0, 8 / 2**0.5, 6 / 2**0.5]),  # c is the number of those that agree
        ("importance", 1, [(4 + 6) / 4, 2, 0, 6, 3]),  # the last is important to none that changed it: the mean
        ("winner", 1, [2, 6, 3, 6, 5]),  # equal importance: the larger one; 3 and -3: the first
        ("largest", 1, [4, 6, 3, 6, 5]),
    ],
)
def test_by_hand(stack_of: Any, shared: str, power: float, expected: list[float]) -> None:
    np.testing.assert_allclose(update(stack_of, shared, power), np.array(expected, np.float32), rtol=2e-7)


def test_only_agents_that_changed_the_element_count(stack_of: Any) -> None:
    changed = TAUS != 0
    changed[1] = False
    np.testing.assert_array_equal(update(stack_of, "mean", changed=changed), [4, 6, 3, 4, 5])
    np.testing.assert_array_equal(update(stack_of, "elect", changed=changed), [4, 6, 3, 4, 5])


def test_an_element_that_none_changed_gets_nothing(stack_of: Any) -> None:
    for shared in ("mean", "sum", "elect", "importance", "winner", "largest"):
        assert not update(stack_of, shared, changed=np.zeros(TAUS.shape, np.bool_)).any()


def test_an_update_that_reverses_the_sign_is_elected_by_what_it_adds(stack_of: Any) -> None:
    """Weights come before: what counts is weight * tau."""
    stack = stack_of([0], [[2], [-3]])
    weighted = np.array([[2 * 2.0], [-3.0]], np.float32)
    assert shared_update(stack, weighted, np.ones((2, 1), np.bool_), "elect", 1.0) == [4]


@given(seed=st.integers(0, 10_000), agents=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_power_0_is_the_sum_and_agents_of_one_sign_elect_the_mean(seed: int, agents: int) -> None:
    stack = random_stack(seed, agents=agents, elements=200)
    taus, changed = stack.task_vectors(), np.random.default_rng(seed).random((agents, 200)) < 0.5
    total = shared_update(stack, taus, changed, "sum", 1.0)
    assert_same_bits(shared_update(stack, taus, changed, "mean", 0.0), total, "power 0")
    positive = np.abs(taus)
    elected = shared_update(stack, positive, changed & (positive > 0), "elect", 1.0)
    assert_same_bits(elected, shared_update(stack, positive, changed & (positive > 0), "mean", 1.0), "one sign")


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_equal_importance_is_the_mean(stack_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    taus = rng.integers(-8, 9, (3, 100)).astype(np.float32)
    stack = stack_of(np.zeros(100), taus, importance=np.full((3, 100), 0.25))
    found = shared_update(stack, taus, taus != 0, "importance", 1.0)
    np.testing.assert_allclose(found, shared_update(stack, taus, taus != 0, "mean", 1.0), rtol=1e-6)
