"""What a full probe counts: the kernel equals the definition bit for bit, and no division changes a count."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import kernels
from agentmerge.kernels.arguments import Sampled
from agentmerge.survey.full import definitions
from agentmerge.survey.full.question import Groups, Profile, ProfileCounts
from agentmerge.survey.modules import Module
from agentmerge.survey.sums import POINT, FixedSums, fixed_sums, value_of
from agentmerge.tensors import DTYPES, LEAF, Block, Stack, TensorSpec
from agentmerge.testing import random_stack

HERE = Module(0, "mlp up")


def answer(stack: Stack, profile: Profile) -> Groups:
    with np.errstate(all="ignore"):
        return profile.observe(stack)


def fast(stack: Stack, profile: Profile) -> Groups | None:
    """By the kernel, as `observe` asks it."""
    backend = kernels.choose(stack)
    assert backend is not None
    return profile.kernel(stack, backend)


def small(base: list[float], agents: list[list[float]], dtype: str = "BF16") -> Stack:
    """A tensor of a few numbers that the dtype holds."""
    arrays = [np.array(values, np.float32).astype(DTYPES[dtype]) for values in (base, *agents)]
    spec = TensorSpec("model.layers.0.mlp.up_proj.weight", dtype, (len(base),))
    return Stack(Block(spec, 0, len(base)), arrays[0], tuple(arrays[1:]), tuple("abc"[: len(agents)]))


@given(
    seed=st.integers(0, 2**32),
    elements=st.sampled_from([0, 1, 63, 64, 2047, 2049, 3 * LEAF + 5]),
    agents=st.integers(1, 8),
    dtype=st.sampled_from(["BF16", "F16", "F32"]),
    threshold=st.sampled_from([0.0, 1e-5, 1e-2]),
    sample=st.sampled_from([1, 2, 8]),
    strange=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_kernel_equals_the_definition(
    seed: int, elements: int, agents: int, dtype: str, threshold: float, sample: int, strange: bool
) -> None:
    stack = random_stack(
        seed, elements=elements, agents=agents, dtypes=(dtype,), huge=strange, non_finite=strange
    )  # fmt: skip
    profile = Profile(threshold, sample)
    assert fast(stack, profile) == answer(stack, profile)


@pytest.mark.parametrize("sample", [1, 4])
def test_any_division_at_leaf_edges_gives_the_same_counts(sample: int) -> None:
    stack, profile = random_stack(3, elements=40 * LEAF + 77), Profile(sample=sample)
    pieces = list(stack.pieces(3 * LEAF))[::-1]
    assert reduce(profile.answers.combine, [fast(piece, profile) or {} for piece in pieces]) == answer(stack, profile)


def test_the_answer_survives_json() -> None:
    profile = Profile()
    for agents in (1, 2, 4):
        found = answer(random_stack(5, agents=agents), profile)
        assert profile.answers.decode(json.loads(json.dumps(profile.answers.encode(found)))) == found


def test_agents_of_other_dtypes_and_more_than_eight_go_by_the_definition() -> None:
    mixed = random_stack(1, dtypes=("BF16", "F32", "F16", "BF16"))
    many = random_stack(1, agents=9, elements=100)
    assert fast(mixed, Profile()) is None
    assert fast(many, Profile()) is None
    assert answer(many, Profile())[HERE].agree.size == 36


def test_a_sample_holds_about_its_share_of_the_leaves_and_differs_by_tensor() -> None:
    n = 4096 * LEAF
    chosen = [Sampled(64, definitions.sample_key(name), 0).leaves(n) for name in ("model.a.weight", "model.b.weight")]
    assert all(abs(int(leaves.sum()) - 64) <= 2 for leaves in chosen)
    assert (chosen[0] != chosen[1]).any()
    columns = np.bincount(np.flatnonzero(chosen[0]) % 8, minlength=8)  # rows of 8 leaves: no column left out
    assert columns.min() >= 4


def test_a_stack_without_a_sampled_leaf_counts_nothing() -> None:
    stack = random_stack(1, elements=LEAF)
    name = next(f"t{i}" for i in range(99) if not Sampled(8, definitions.sample_key(f"t{i}"), 0).leaves(LEAF)[0])
    stack = replace(stack, block=Block(TensorSpec(name, "BF16", (LEAF,)), 0, LEAF))
    assert fast(stack, Profile(sample=8)) == {} == answer(stack, Profile(sample=8))


def test_steps_are_counted_in_numbers_of_the_stored_dtype() -> None:
    step = 2.0**-7  # of bfloat16 between 1 and 2
    moved = [1 + k * step for k in (1, 2, 3, 4, 5, 8, 9, 40)]
    counts = answer(small([1.0] * 8, [moved]), Profile())[HERE]
    assert counts.steps.tolist() == [[1, 1, 2, 2, 2]]
    assert answer(small([1.0], [[1 - step / 2]]), Profile())[HERE].steps.tolist() == [[1, 0, 0, 0, 0]]  # finer below 1
    across = small([2.0**-133], [[-(2.0**-133)]])  # the smallest numbers of either sign: 2 steps apart, 0 between them
    assert answer(across, Profile(threshold=0.0))[HERE].steps.tolist() == [[0, 1, 0, 0, 0]]


def test_agreement_conflict_and_cancelling_by_hand() -> None:
    base = [0.0] * 5
    a, b = [0.25, 0.25, 0.25, 0.25, 0.0], [0.25, 0.5, -0.25, 0.0, 0.25]
    counts = answer(small(base, [a, b]), Profile())[HERE]
    assert counts.both.sum() == 3
    assert (counts.agree.tolist(), counts.equal.tolist()) == ([2], [1])
    assert counts.conflict.tolist() == counts.cancelled.tolist() == [1, 1]
    assert counts.sampled.tolist() == [[4, 4], [1, 1], [3, 3]]
    energy = counts.energy()
    assert energy.unique.tolist() == [0.0625, 0.0625]
    assert energy.shared.tolist() == [3 * 0.0625, 0.0625 + 0.25 + 0.0625]
    assert energy.kept.tolist() == [0.25 * 0.25 + 0.25 * 0.375, 0.25 * 0.25 + 0.5 * 0.375]
    assert energy.dot.tolist() == [0.0625 + 0.125 - 0.0625]


def test_a_rescale_survives_where_the_merge_stores_another_number() -> None:
    """One step of bfloat16 times 1.5 is a tie that goes to the even neighbour, 2 steps; times 1.4 it is 1 step."""
    step = 2.0**-7
    counts = answer(small([1.0], [[1 + step]]), Profile())[HERE]
    first = next(m for m, found in zip(definitions.MULTIPLIERS, counts.survived[0, :, 0], strict=True) if found)
    assert first == 1.5
    assert counts.survived[1, :, 0].tolist()[1:] == [1] * 9  # float16 is eight times as fine
    assert counts.survived[2].all()


def test_the_mean_of_three_loses_a_single_step() -> None:
    counts = answer(small([1.0, 1.0], [[1.0078125, 1.0], [1.0, 1.0], [1.0, 1.0]]), Profile())[HERE]
    assert counts.lost[0, 0].tolist() == [[1, 0, 0], [1, 0, 0]]  # task arithmetic, bfloat16: a third of a step
    assert not counts.lost[1].any()  # RAM keeps what is unique
    assert not counts.lost[0, 2].any()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_fixed_sums_do_not_depend_on_the_order_and_are_close(values: list[float], order: object) -> None:
    leaves = np.array(values)[:, None]
    whole = fixed_sums(leaves)
    parts = [fixed_sums(leaves[i : i + 1])[0] for i in range(len(values))]
    order.shuffle(parts)  # type: ignore[attr-defined]
    assert whole == (sum(parts),)
    assert value_of(whole[0]) == pytest.approx(sum(values), rel=1e-12, abs=1e-9)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_fixed_sums_are_exact_at_any_size_and_travel_as_they_are(values: list[float], rows: int) -> None:
    leaves = np.array(values * rows).reshape(rows, -1).T
    found = fixed_sums(leaves)
    assert found == (sum(map(Fraction, values)) * 2**POINT,) * rows
    assert FixedSums().decode(json.loads(json.dumps(FixedSums().encode(found)))) == found


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_leaf_that_is_not_finite_makes_a_sum_unknown_whatever_is_added(odd: float) -> None:
    unknown, known = fixed_sums(np.array([[1.0, 1.0], [odd, -2.0]]))
    for other in fixed_sums(np.array([[np.nan, -np.finfo(float).max, 0.0, np.inf]])):
        (again,) = FixedSums().decode(FixedSums().encode((unknown + other,)))
        assert np.isnan(value_of(again))
    assert value_of(known) == -1


def test_a_sum_beyond_float64_is_inf() -> None:
    (most,) = fixed_sums(np.full((3, 1), np.finfo(float).max))
    assert (value_of(most), value_of(-most)) == (np.inf, -np.inf)


def test_counts_add_up_field_by_field() -> None:
    found = answer(random_stack(9), Profile())[HERE]
    twice = found + found
    assert isinstance(twice, ProfileCounts)
    assert np.array_equal(twice.steps, 2 * found.steps)
    assert twice.energies == tuple(2 * total for total in found.energies)
