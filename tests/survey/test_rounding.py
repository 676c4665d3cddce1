"""What the output cast did is counted as a loop over single elements counts it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.methods.ram import Ram
from agentmerge.survey.rounding import Rounding, RoundingCounts
from agentmerge.tensors import Block, Cast, Stack, TensorSpec, as_float32
from agentmerge.testing import random_stack, survey_of

if TYPE_CHECKING:
    from agentmerge.tensors import Array

BF16 = ml_dtypes.bfloat16


def by_hand(stack: Stack, merged: Array, stored: Array, cast: Cast, threshold: float) -> RoundingCounts:
    counts = RoundingCounts.zero(len(stack.agents))
    name, start = stack.block.tensor.name, stack.block.start
    overflow = non_finite = 0

    def as_stored(values: Array) -> Array:
        return as_float32(cast.apply(as_float32(values), name, start))

    base, agents = as_stored(stack.base), [as_stored(agent) for agent in stack.agents]
    for i in range(stack.base.size):
        before, result = np.float32(stack.base[i]), np.float32(stored[i])
        who = [
            t for t, a in enumerate(stack.agents) if abs(np.float32(np.float32(a[i]) - before)) > np.float32(threshold)
        ]
        for t in who:
            counts.changed[t] += 1
            counts.lost[t] += merged[i] != before and result == base[i]
            if len(who) == 1:
                counts.unique[t] += 1
                counts.survived[t] += result != agents[t][i]
        overflow += bool(np.isinf(result) and np.isfinite(merged[i]))
        non_finite += bool(not np.isfinite(merged[i]))
    return RoundingCounts(counts.changed, counts.lost, counts.unique, counts.survived, overflow, non_finite)


@given(
    seed=st.integers(0, 9999),
    cast=st.sampled_from(
        [Cast("BF16"), Cast("F16"), Cast("F32"), Cast("BF16", "stochastic", 3), Cast("F16", "stochastic")]
    ),
    threshold=st.sampled_from([0.0, 1e-5, 0.02]),
    dtypes=st.sampled_from([("BF16",), ("BF16", "F32"), ("F32", "F16")]),
)
@settings(max_examples=50, deadline=None)
def test_the_counts_are_what_a_loop_counts(seed: int, cast: Cast, threshold: float, dtypes: Any) -> None:
    stack = random_stack(seed, elements=130, dtypes=dtypes, huge=True)
    method = Ram(threshold=threshold)
    with np.errstate(all="ignore"):
        merged = method.merge(stack, survey_of(method, [stack]))
        stored = cast.apply(merged, stack.block.tensor.name, 0)
        found = Rounding(threshold).observe(stack, merged, stored, cast)
        assert found == by_hand(stack, merged, stored, cast, threshold)


def test_a_change_that_rounds_away_and_a_rescale_that_rounds_away_are_told_apart() -> None:
    """bfloat16 steps around 1 are 2^-7 up and 2^-8 down: 1.1 times one step rounds back to one step."""
    step = 2.0**-7
    base = np.array([1, 1, 1, 1], BF16)
    a = np.array([1 + step, 1 + 8 * step, 1, 1], BF16)  # unique: 1.1 steps -> 1 step; 8.8 steps -> 9 steps
    b = np.array([1, 1, 1 + 0.5 * step, 1], np.float32)  # 0.5 steps up: the tie goes back to the base
    spec = TensorSpec("w", "BF16", (4,))
    stack = Stack(Block(spec, 0, 4), base, (a, b), ("a", "b"))
    merged = np.array([1 + 1.1 * step, 1 + 8.8 * step, 1 + 0.5 * step, 1], np.float32)
    cast = Cast("BF16")
    stored = cast.apply(merged, "w", 0)
    found = Rounding().observe(stack, merged, stored, cast)
    assert found.changed.tolist() == [2, 1]
    assert found.lost.tolist() == [0, 1]
    assert found.unique.tolist() == [2, 1]
    assert found.survived.tolist() == [1, 0]


def test_overflow_and_non_finite_results_are_counted_apart() -> None:
    stack = random_stack(0, elements=4, agents=1, dtypes=("F32",))
    merged = np.array([1e5, np.inf, np.nan, 1.0], np.float32)
    with np.errstate(all="ignore"):
        stored = merged.astype(np.float16)
        found = Rounding().observe(stack, merged, stored, Cast("F16"))
    assert (found.overflow, found.non_finite) == (1, 2)


def test_combine_adds_and_is_commutative_and_associative() -> None:
    question = Rounding()
    rng = np.random.default_rng(0)
    a, b, c = (
        RoundingCounts(*(rng.integers(0, 9, 3) for _ in range(4)), int(rng.integers(9)), int(rng.integers(9)))
        for _ in range(3)
    )
    assert question.answers.combine(a, b) == question.answers.combine(b, a)
    assert question.answers.combine(question.answers.combine(a, b), c) == question.answers.combine(
        a, question.answers.combine(b, c)
    )
    assert question.answers.combine(a, RoundingCounts.zero(3)) == a


def test_answers_survive_json() -> None:
    question = Rounding(0.5)
    answer = RoundingCounts(*(np.arange(3) + i for i in range(4)), 5, 6)
    assert question.answers.decode(json.loads(json.dumps(question.answers.encode(answer)))) == answer
