"""TIES gives what MergeLM gives, what a loop over single elements gives, and what one can work out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import Recipe, merge
from agentmerge.errors import RecipeError
from agentmerge.methods.ties import ElectedSigns, Ties
from agentmerge.survey.magnitude import MagnitudeHigh, MagnitudeLow
from agentmerge.survey.statistic import Survey
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    make_agents,
    random_stack,
    read_checkpoint,
    survey_of,
    write_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array, Stack

REFERENCES = {  # MergeLM's mask rate and scale
    "ties__mergelm_mask_0.7_scale_0.7": (0.7, 0.7),
    "ties__mergelm_mask_0.8_scale_1.0": (0.8, 1.0),
    "ties__mergelm_mask_0.9_scale_0.5": (0.9, 0.5),
}


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("reference", REFERENCES)
def test_the_float32_output_is_within_two_ulp_of_mergelm(
    golden: Path, tmp_path: Path, golden_recipe: Any, ulps: Any, reference: str
) -> None:
    mask, scale = REFERENCES[reference]
    merge(golden_recipe(golden, {"name": "ties", "density": 1 - mask, "scale": scale}), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    expected = read_checkpoint(golden / "expected" / f"{reference}.safetensors")
    assert found.keys() == expected.keys()
    assert max(int(ulps(array, expected[name]).max()) for name, array in found.items()) <= 2


# trim


def test_the_smallest_magnitudes_are_dropped_and_those_equal_to_the_limit_kept(stack_of: Any, merged: Any) -> None:
    """Ten elements at density 0.4: k = int(10 * 0.6) = 6, and the 6th smallest magnitude is 3, which three have."""
    tau = [1, -3, 0, 5, 2, 3, -2, 1, 4, -3]
    kept = [0, -3, 0, 5, 0, 3, 0, 0, 4, -3]
    np.testing.assert_array_equal(merged(Ties(density=0.4), stack_of(np.zeros(10), [tau])), kept)


@pytest.mark.usefixtures("either_way")
def test_the_record_tells_the_limit_and_how_many_elements_are_equal_to_it(tmp_path: Path) -> None:
    tau = np.array([1, -3, 0, 5, 2, 3, -2, 1, 4, -3], np.float32)
    sources = by_hand(tmp_path, np.zeros(10, np.float32), a=tau, b=-tau[::-1] * np.float32(0.5))
    record = merge(sources.recipe({"name": "ties", "density": 0.4}), tmp_path / "out")
    trim = {"a": {"smallest_kept": 3.0, "ties": 3}, "b": {"smallest_kept": 1.5, "ties": 3}}
    assert record.learned == {"trim": trim}


def test_bfloat16_agents_have_many_elements_at_the_limit(golden: Path, tmp_path: Path, golden_recipe: Any) -> None:
    record = merge(golden_recipe(golden, "ties"), tmp_path / "out")
    assert record.learned["trim"] == {
        "code": {"smallest_kept": 0.0, "ties": 0},  # changed 3 % of its elements, so none of them is trimmed
        "memory": {"smallest_kept": 0.00042724609375, "ties": 1741},
        "tool": {"smallest_kept": 0.0003662109375, "ties": 3392},
    }


@given(seed=st.integers(0, 1000), zeros=st.floats(0.7, 0.99))
@settings(max_examples=20, deadline=None)
def test_with_many_exact_zeros_all_real_changes_are_kept_and_nothing_else(
    stack_of: Any, merged: Any, seed: int, zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    tau = np.where(rng.random(500) < zeros, 0, rng.standard_normal(500)).astype("f4")
    density = 2 * float((tau != 0).mean()) if (tau != 0).any() else 0.2
    stack = stack_of(np.zeros(500), [tau])
    method = Ties(density=min(density, 0.99))
    np.testing.assert_array_equal(merged(method, stack), tau)
    trim = method.told(survey_of(method, [stack]), ("a",)).learned["trim"]["a"]
    assert trim == {"smallest_kept": 0.0, "ties": 0}


@pytest.mark.usefixtures("either_way")
def test_scope_tensor_ranks_each_tensor_by_itself(stack_of: Any) -> None:
    small = stack_of([0, 0, 0, 0], [[1, 2, 3, 4]], "small")
    large = stack_of([0, 0, 0, 0], [[10, 20, 30, 40]], "large")
    expected = {"model": ([0, 0, 0, 4], [10, 20, 30, 40]), "tensor": ([0, 2, 3, 4], [0, 20, 30, 40])}
    for scope, results in expected.items():
        method = Ties(density=0.5, scope=scope)
        survey = survey_of(method, [small, large])
        for stack, result in zip((small, large), results, strict=True):
            np.testing.assert_array_equal(method.merge(stack, survey), result)


# elect and disjoint mean


def test_signs_are_elected_by_the_weighted_sum_and_weigh_the_mean(stack_of: Any, merged: Any) -> None:
    """Columns: both +; b outvotes a by its weight; a outvotes b; only b changed it, so its weight cancels."""
    stack = stack_of(np.zeros(4), [[2, 2, 8, 0], [1, -1, -1, 5]], weights=(1.0, 3.0))
    np.testing.assert_array_equal(merged(Ties(density=1), stack), [(2 + 3 * 1) / 4, -1, 8, 5])
    np.testing.assert_array_equal(merged(Ties(density=1, scale=0.5), stack), [0.625, -0.5, 4, 2.5])


@pytest.mark.parametrize(
    ("taus", "zero_sign", "expected"),
    [
        (([1, 4, 4], [-1, 4, 0]), "majority", [1, 4, 4]),  # two elements elected +, so the torn one does
        (([1, -4, -4], [-1, 4.5, -2]), "majority", [0, 4.5, -3]),  # one elected +, one -: none is the majority
        (([1, -4, -4], [-1, -4, 4.5]), "majority", [0, -4, 4.5]),
        (([1, -4, -4, -1], [-1, -4, 0, -1]), "majority", [-1, -4, -4, -1]),
        (([1, 4, 4], [-1, 4, 0]), "zero", [0, 4, 4]),
    ],
)
def test_a_sum_of_zero_takes_the_checkpoints_majority_sign_or_keeps_the_base(
    stack_of: Any, merged: Any, taus: Any, zero_sign: Any, expected: Any
) -> None:
    stack = stack_of(np.zeros(len(taus[0])), taus)
    np.testing.assert_array_equal(merged(Ties(density=1, zero_sign=zero_sign), stack), expected)


@pytest.mark.usefixtures("either_way")
def test_the_majority_is_that_of_the_whole_checkpoint(stack_of: Any) -> None:
    torn = stack_of([0], [[2], [-2]], "torn")
    others = stack_of([0, 0], [[-1, -1], [-1, 0]], "others")
    method = Ties(density=1)
    assert method.merge(torn, survey_of(method, [torn, others])) == [-2]
    assert method.merge(torn, survey_of(method, [torn])) == [0]


@given(
    seed=st.integers(0, 10_000),
    agents=st.integers(1, 4),
    elements=st.sampled_from([1, 63, 200]),
    density=st.sampled_from([0.05, 0.2, 0.5, 0.999, 1.0]),
    zero_sign=st.sampled_from(["majority", "zero"]),
)
@settings(max_examples=40, deadline=None)
def test_the_definition_equals_a_loop_over_single_elements(
    merged: Any, seed: int, agents: int, elements: int, density: float, zero_sign: Any
) -> None:
    weights = tuple(float(w) for w in np.random.default_rng(seed).choice([1.0, 0.7, 1.3], agents))
    stack = random_stack(seed, agents=agents, elements=elements, dtypes=("BF16", "F16", "F32"), weights=weights)
    method = Ties(density=density, scale=0.7, zero_sign=zero_sign)
    assert_same_bits(merged(method, stack), looped(method, stack), str(method))


def looped(method: Ties, stack: Stack) -> Array:
    """The head of ties.py, an element at a time."""
    one, n = np.float32, stack.base.size
    kept = []
    for tau in stack.task_vectors():
        k = int(n * (1 - method.density))
        limit = np.sort(np.abs(tau))[k - 1] if k >= 1 else 0
        kept.append([x if abs(x) >= limit else one(0) for x in tau])
    weight, totals = [one(w) for w in stack.weights], []
    for i in range(n):
        total = one(0)
        for w, row in zip(weight, kept, strict=True):
            total = one(total + w * row[i])
        totals.append(total)
    majority = np.sign(sum(np.sign(total) for total in totals)) if method.zero_sign == "majority" else 0
    result = []
    for i, total in enumerate(totals):
        sign, above, below = np.sign(total) or majority, one(0), one(0)
        for w, row in zip(weight, kept, strict=True):
            if row[i] != 0 and np.sign(row[i]) == sign:
                above, below = one(above + w * row[i]), one(below + w)
        update = one(method.scale) * (above / below) if below else one(0)
        base = one(stack.base[i])
        result.append(one(base + update) if update else base)
    return np.array(result, np.float32)


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1.0, 0.3, -2.0]), elements=st.sampled_from([0, 1, 500]))
@settings(max_examples=30, deadline=None)
def test_at_density_1_one_agent_is_base_plus_scale_times_its_task_vector(
    merged: Any, seed: int, scale: float, elements: int
) -> None:
    stack = random_stack(seed, agents=1, elements=elements, dtypes=("BF16", "F32"))
    (tau,), base = stack.task_vectors(), stack.base.astype(np.float32)
    update = np.float32(scale) * tau  # 0 where it is too small for float32
    expected = np.where(update == 0, base, base + update)
    assert_same_bits(merged(Ties(density=1, scale=scale), stack), expected, f"scale {scale}")


# questions


def test_it_asks_three_times_and_less_often_where_less_is_to_know() -> None:
    stack = random_stack(0)
    asked = {
        Ties(): [MagnitudeHigh, MagnitudeLow, ElectedSigns],
        Ties(zero_sign="zero"): [MagnitudeHigh, MagnitudeLow],
        Ties(density=1): [ElectedSigns],
        Ties(density=1, zero_sign="zero"): [],
    }
    for method, expected in asked.items():
        survey, found = Survey(), []
        while questions := method.ask(survey):
            (question,) = questions
            found.append(type(question))
            survey.add(question, stack.block.tensor.name, question.observe(stack))
        assert found == expected


@pytest.mark.parametrize("density", [0, -0.1, 1.1])
def test_a_density_outside_its_range_is_refused(tiny: Sources, density: float) -> None:
    with pytest.raises(RecipeError, match=r"method\.density: Input should be"):
        Recipe.parse(tiny.recipe({"name": "ties", "density": density}))


def test_two_densities_in_one_recipe_are_each_ranked_over_the_whole_task_vector(tmp_path: Path) -> None:
    sources = make_agents(tmp_path / "in")
    rules = [{"tensors": "lm_head*", "density": 0.5}]
    merge(sources.recipe("ties", rules=rules), tmp_path / "ruled")
    for density, name in ((0.5, "lm_head.weight"), (0.2, "model.embed_tokens.weight")):
        merge(sources.recipe({"name": "ties", "density": density}), tmp_path / str(density))
        found, expected = (read_checkpoint(tmp_path / out)[name] for out in ("ruled", str(density)))
        assert_same_bits(found, expected, name)


@pytest.mark.parametrize(
    "method",
    [Ties(), Ties(scope="tensor", density=0.5, scale=0.7), Ties(zero_sign="zero", density=1)],
    ids=["paper", "tensor", "zero"],
)
def test_the_contract_is_kept(method: Ties) -> None:
    assert_contract(method, weights=(0.5, 1.0, 1.7))


def by_hand(folder: Path, base: Array, **taus: Array) -> Sources:
    """Checkpoints of one float32 tensor; agents are base + tau."""
    root = write_checkpoint(folder / "base", {"w": base})
    return Sources(root, {name: write_checkpoint(folder / name, {"w": base + tau}) for name, tau in taus.items()})


def test_a_sum_of_0_may_take_the_positive_changes():
    stack = random_stack(0, elements=4, agents=2)
    tau = np.array([[1, -1, 2, 0], [-1, 1, 1, 0]], np.float32)
    stack = replace(stack, base=np.zeros(4, np.float32), agents=(tau[0], tau[1]), weights=(1.0, 1.0))
    merged = {z: Ties(density=1, zero_sign=z).merge(stack, Survey()) for z in ("plus", "zero")}
    np.testing.assert_array_equal(merged["plus"], np.array([1, 1, 1.5, 0], np.float32))
    np.testing.assert_array_equal(merged["zero"], np.array([0, 0, 1.5, 0], np.float32))


def test_without_normalize_the_agents_that_agree_are_added():
    tau = np.array([[1, -1, 2, 0], [3, 4, 1, 0]], np.float32)
    stack = replace(
        random_stack(0, elements=4, agents=2), base=np.zeros(4, np.float32), agents=(tau[0], tau[1]), weights=(1.0, 0.5)
    )
    merged = Ties(density=1, zero_sign="zero", normalize=False, scale=2.0).merge(stack, Survey())
    np.testing.assert_array_equal(merged, np.array([5, 4, 5, 0], np.float32))
