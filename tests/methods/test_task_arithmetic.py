"""Task Arithmetic and the weighted mean give what MergeLM gives, and what one can work out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import Recipe, merge
from agentmerge.errors import RecipeError
from agentmerge.methods.ram import Ram
from agentmerge.methods.task_arithmetic import Linear, TaskArithmetic
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    random_stack,
    read_checkpoint,
    survey_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REFERENCES: dict[str, dict[str, Any]] = {
    "task_arithmetic__mergelm_scale_0.3000": {"name": "task_arithmetic", "scale": 0.3},
    "task_arithmetic__mergelm_scale_0.3333": {"name": "task_arithmetic"},
    "task_arithmetic__mergelm_scale_1.0000": {"name": "task_arithmetic", "scale": 1.0},
}


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("reference", REFERENCES)
def test_the_float32_output_is_within_two_ulp_of_mergelm(
    golden: Path, tmp_path: Path, golden_recipe: Any, ulps: Any, reference: str
) -> None:
    merge(golden_recipe(golden, REFERENCES[reference]), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    expected = read_checkpoint(golden / "expected" / f"{reference}.safetensors")
    assert found.keys() == expected.keys()
    assert max(int(ulps(array, expected[name]).max()) for name, array in found.items()) <= 2


# by hand


def test_the_sum_is_scaled_and_weights_multiply_each_task_vector(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, 1, 1], [[2, 1, 1], [1, 3, 2]], weights=(0.5, 2.0))
    np.testing.assert_array_equal(merged(TaskArithmetic(scale=0.5), stack), [1.25, 3, 2])


def test_no_scale_means_one_over_the_number_of_agents(stack_of: Any, merged: Any) -> None:
    stack = stack_of([0, 0], [[4, 0], [0, 8], [0, 0], [4, 4]])
    np.testing.assert_array_equal(merged(TaskArithmetic(), stack), [2, 3])


def test_linear_is_the_weighted_mean_of_the_agents(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, 1], [[2, 5], [4, 1]], weights=(3.0, 1.0))
    np.testing.assert_array_equal(merged(Linear(), stack), [(3 * 2 + 4) / 4, (3 * 5 + 1) / 4])


def test_linear_without_normalizing_adds_the_weighted_task_vectors(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, 1], [[2, 5], [4, 1]], weights=(3.0, -1.0))
    np.testing.assert_array_equal(merged(Linear(normalize=False), stack), [1 + 3 - 3, 1 + 12])


@pytest.mark.parametrize("method", [TaskArithmetic(), Linear(), TaskArithmetic(scale=0.0)], ids=str)
def test_an_update_of_zero_keeps_the_bases_bits(stack_of: Any, merged: Any, method: Any) -> None:
    stack = stack_of([-0.0, 0.0, -1.0], [[-0.0, 0.0, -1.0]] * 2)
    assert_same_bits(merged(method, stack), stack.base, "base")


# where two methods are one


@given(seed=st.integers(0, 10_000), agents=st.integers(1, 6), weight=st.sampled_from([1.0, 0.3, 2.5]))
@settings(max_examples=40, deadline=None)
def test_linear_with_equal_weights_is_task_arithmetic_at_one_over_n(
    merged: Callable[..., Any], seed: int, agents: int, weight: float
) -> None:
    """Both round the update once or twice; so the merged numbers differ by a rounding of the update at most."""
    stack = random_stack(seed, agents=agents, elements=300, dtypes=("BF16", "F32"), weights=(weight,) * agents)
    mean, scaled = merged(Linear(), stack), merged(TaskArithmetic(scale=1 / (agents * weight)), stack)
    largest = np.abs(stack.task_vectors()).max(axis=0)
    assert (np.abs(mean - scaled) <= 2**-21 * (largest + np.abs(mean)) + 1e-44).all()  # or of a subnormal number


@given(seed=st.integers(0, 10_000), agents=st.integers(1, 5), dtype=st.sampled_from(["f4", ml_dtypes.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_on_disjoint_agents_ram_is_the_sum_of_the_task_vectors(
    stack_of: Any, merged: Any, seed: int, agents: int, dtype: Any
) -> None:
    """Where nothing is shared RAM keeps every agent's own number, which base + tau reaches up to its rounding."""
    rng = np.random.default_rng(seed)
    base = (0.02 * rng.standard_normal(400)).astype(dtype).astype("f4")
    owner = rng.integers(-1, agents, 400)
    changed = (base + 0.01 * (1 + rng.random(400))).astype(dtype).astype("f4")
    stack = stack_of(base, [np.where(owner == t, changed, base) for t in range(agents)])
    own, total = merged(Ram(name="ram"), stack), merged(TaskArithmetic(scale=1.0), stack)
    np.testing.assert_array_equal(own, np.where(owner >= 0, changed, base))
    assert (np.abs(own - total) <= 2**-23 * (np.abs(base) + np.abs(own))).all()
    np.testing.assert_array_equal(merged(Ram(), stack), own)  # rho is 0, so lambda is 1


# settings and refusals


def test_linear_refuses_weights_that_cancel(tiny: Sources) -> None:
    agents = {
        n: {"source": str(p), "weight": w} for (n, p), w in zip(tiny.agents.items(), (0.1, 0.2, -0.3), strict=True)
    }
    recipe = {**tiny.recipe("linear"), "agents": agents}
    with pytest.raises(RecipeError, match="agents: the weights add up to 0, which `linear` divides by"):
        Recipe.parse(recipe)
    Recipe.parse({**recipe, "method": {"name": "linear", "normalize": False}})


def test_a_rule_may_give_a_tensor_another_scale(tiny: Sources, tmp_path: Path) -> None:
    rules = [{"tensors": "*norm*", "scale": 0}]
    merge(tiny.recipe({"name": "task_arithmetic", "scale": 1}, rules=rules), tmp_path / "out")
    found, base = read_checkpoint(tmp_path / "out"), read_checkpoint(tiny.base)
    assert_same_bits(found["model.norm.weight"], base["model.norm.weight"], "norm")
    assert (found["lm_head.weight"] != base["lm_head.weight"]).any()


def test_they_ask_nothing() -> None:
    for method in (TaskArithmetic(), Linear()):
        assert method.ask(survey_of(method, [])) == ()


@pytest.mark.parametrize("method", [TaskArithmetic(), TaskArithmetic(scale=-0.7), Linear()], ids=str)
def test_the_contract_is_kept(method: Any) -> None:
    assert_contract(method, weights=(0.5, 1.0, 1.7))
