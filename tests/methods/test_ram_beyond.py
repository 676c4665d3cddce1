"""RAM's fields beyond the paper leave the paper's behaviour alone, and do what their formulas say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import Recipe, merge
from agentmerge.errors import RecipeError
from agentmerge.methods.ram import Ram
from agentmerge.methods.ram_energies import Energies, scales_from
from agentmerge.methods.ram_shared import shared_update
from agentmerge.methods.task_arithmetic import TaskArithmetic
from agentmerge.survey.retention import StoredRetention
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import as_float32
from agentmerge.testing import Sources, assert_contract, assert_same_bits, random_stack, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array, Stack


# the paper is the default


@given(seed=st.integers(0, 10_000), name=st.sampled_from(["ram", "ram_plus", "ram_plus_soft"]))
@settings(max_examples=20, deadline=None)
def test_the_fields_written_out_are_the_paper(merged: Any, seed: int, name: Any) -> None:
    stack = random_stack(seed, elements=300)
    plain = merged(Ram(name=name), stack)
    assert_same_bits(merged(Ram(name=name, shared="mean", shared_power=1, bound=None), stack), plain, name)


# by hand


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [3, 5, 1 + 3, 1 + 2]),
        ({"shared": "sum"}, [3, 5, 1 + 6, 1 + 4]),
        ({"shared_power": 0}, [3, 5, 1 + 6, 1 + 4]),
        ({"shared_power": 0.5}, [3, 5, 1 + 6 / 2**0.5, 1 + 4 / 2**0.5]),
        ({"shared": "elect"}, [3, 5, 1 + 3, 1 + 6]),
        ({"shared": "elect", "shared_power": 0}, [3, 5, 1 + 6, 1 + 6]),
        ({"shared": "importance"}, [3, 5, 1 + (4 + 3 * 2) / 4, 1 + 2]),
    ],
    ids=str,
)
def test_shared_elements_change_and_unique_ones_do_not(
    stack_of: Any, merged: Any, fields: dict[str, Any], expected: list[float]
) -> None:
    """Columns: only a; only b; both, of one sign; both, of opposite signs and of no importance."""
    stack = stack_of([1] * 4, [[3, 1, 5, 7], [1, 5, 3, -1]], importance=[[1, 1, 1, 0], [1, 1, 3, 0]])
    found = merged(Ram(name="ram", **fields), stack)
    np.testing.assert_allclose(found, np.array(expected, "f4"), rtol=2e-7)


def test_a_weight_multiplies_tau_after_the_threshold_test(stack_of: Any, merged: Any) -> None:
    """An agent of weight 0 still makes an element shared; a large weight does not lift a small change over it."""
    stack = stack_of([0, 0, 0], [[2, 2, 0], [0, 4, 8e-6]], weights=(0.5, 0.0))
    np.testing.assert_array_equal(merged(Ram(name="ram"), stack), [1, 0.5, 0])
    heavy = stack_of([0], [[8e-6]], weights=(1000.0,))
    np.testing.assert_array_equal(merged(Ram(name="ram"), heavy), [0])


def test_a_weight_may_turn_an_agent_round_and_election_sees_it(stack_of: Any, merged: Any) -> None:
    stack = stack_of([0, 0], [[4, 2], [-2, 0]], weights=(1.0, -1.0))
    np.testing.assert_array_equal(merged(Ram(name="ram", shared="elect"), stack), [(4 + 2) / 2, 2])


# against other definitions


@given(
    seed=st.integers(0, 10_000),
    agents=st.integers(1, 5),
    shared=st.sampled_from(["mean", "sum", "elect", "importance"]),
    power=st.sampled_from([0.0, 0.5, 1.0]),
    rescale=st.sampled_from([0.0, 0.3, "auto"]),
    bound=st.sampled_from([None, 1.2]),
)
@settings(max_examples=60, deadline=None)
def test_the_definition_is_base_where_unchanged_lambda_tau_where_unique_and_the_shared_update_elsewhere(
    stack_of: Any, merged: Any, seed: int, agents: int, shared: Any, power: float, rescale: Any, bound: float | None
) -> None:
    rng = np.random.default_rng(seed)
    taus = rng.standard_normal((agents, 150)) * (rng.random((agents, 150)) < 0.5)
    weights = tuple(rng.choice([1.0, 0.7, -1.3], agents).tolist())
    drawn = rng.random((agents, 150)) * (rng.random(150) < 0.8)
    stack = stack_of(0.02 * rng.standard_normal(150), taus, weights=weights, importance=drawn)
    power = power if shared in ("mean", "elect") else 1.0
    bound = bound if rescale == "auto" else None
    method = Ram(rescale=rescale, shared=shared, shared_power=power, bound=bound)
    assert_same_bits(merged(method, stack), in_regions(method, stack), str(method))


def in_regions(method: Ram, stack: Stack) -> Array:
    """Region by region, with sets of elements instead of selections."""
    base, tau = as_float32(stack.base), stack.task_vectors()
    updates = stack.weight()[:, None] * tau
    changed = np.abs(tau) > np.float32(method.threshold)
    count, result = changed.sum(axis=0), base.copy()
    if method.rescale == "auto":
        question = Energies(method.threshold, method.shared, method.shared_power)
        scales = scales_from(question.observe(stack), method.bound)
    else:
        ratios = [(count[row] > 1).sum() / max((count[row] == 1).sum(), 1e-9) for row in changed]
        scales = tuple(1 + method.rescale * min(ratio, method.clip) for ratio in ratios)
    for t, scale in enumerate(scales):
        mine = changed[t] & (count == 1)
        own = as_float32(stack.agents[t])
        scaled = base + np.float32(scale) * updates[t]
        result[mine] = (own if np.float32(scale) == 1 and stack.weight()[t] == 1 else scaled)[mine]
    shared = shared_update(stack, updates, changed, method.shared, method.shared_power)
    result[count > 1] = (base + shared)[count > 1]
    return result


@given(seed=st.integers(0, 10_000), agents=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_summing_shared_elements_is_task_arithmetic_on_the_changed_elements(
    stack_of: Any, merged: Any, seed: int, agents: int
) -> None:
    """Up to the rounding of base + tau, where RAM takes a lone agent's own number."""
    rng = np.random.default_rng(seed)
    base = (0.02 * rng.standard_normal(300)).astype("f4")
    own = base + np.float32(0.01) * rng.standard_normal((agents, 300)).astype("f4") * (rng.random((agents, 300)) < 0.5)
    stack = stack_of(base, np.where(np.abs(own - base) > np.float32(1e-5), own, base))
    for fields in ({"shared": "sum"}, {"shared_power": 0}):
        found = merged(Ram(name="ram", **fields), stack)
        expected = merged(TaskArithmetic(scale=1.0), stack)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2**-28)


# refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shared": "sum", "shared_power": 0.5}, "shared_power: has no meaning with shared 'sum'"),
        ({"shared": "importance", "shared_power": 0}, "shared_power: has no meaning with shared 'importance'"),
        ({"bound": 2}, "bound: limits rescale 'auto' only"),
        ({"rescale": "auto", "bound": -1}, "bound: Input should be greater than or equal to 0"),
        ({"rescale": "aut"}, "rescale: Input should be"),
        ({"shared": "meen"}, "shared: Input should be 'mean', 'sum', 'elect', 'importance', 'winner' or 'largest'"),
        ({"shared_power": 1.5}, "shared_power: Input should be less than or equal to 1"),
        ({"shared_power": -0.5}, "shared_power: Input should be greater than or equal to 0"),
    ],
    ids=str,
)
def test_fields_that_do_not_fit_together_are_refused(tiny: Sources, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(tiny.recipe({"name": "ram_plus", **fields}))
    assert message in str(caught.value)


def test_importance_is_required_where_it_weighs(tiny: Sources) -> None:
    with pytest.raises(RecipeError, match=r"agents\.code\.importance: missing"):
        Recipe.parse(tiny.recipe({"name": "ram", "shared": "importance"}))


# questions, kernels, records


def test_what_is_asked() -> None:
    for fields in ({"shared": "elect"}, {"shared": "sum"}, {"shared_power": 0.5}):
        assert Ram(name="ram", **fields).ask(Survey()) == ()
        assert Ram(**fields).ask(Survey()) == Ram().ask(Survey())
    assert Ram(rescale="auto").ask(Survey()) == (Energies(1e-5, "mean", 1.0), StoredRetention())
    assert Ram(shared="importance").reads == ("importance",)
    assert Ram(shared="elect").reads == ()


def test_the_record_tells_the_measured_scale(tiny: Sources, tmp_path: Path) -> None:
    scales = {}
    for bound in (None, 1.01):
        method = {"name": "ram_plus", "rescale": "auto", "bound": bound}
        record = merge(tiny.recipe(method), tmp_path / str(bound))
        scales[bound] = [agent.scale or 0.0 for agent in record.survey.agents.values()]
    assert scales[1.01] == [min(scale, 1.01) for scale in scales[None]]
    assert max(scales[None]) > 1.01


def test_weights_alone_make_the_record_tell_how_many_survived(tiny: Sources, tmp_path: Path) -> None:
    agents = {n: {"source": str(p), "weight": w} for (n, p), w in zip(tiny.agents.items(), (1, 0.5, 1), strict=True)}
    record = merge({**tiny.recipe("ram"), "agents": agents}, tmp_path / "out")
    survived = {name: found.rescale_survived for name, found in record.rounding.items()}
    assert survived["code"] is survived["memory"] is None
    assert (survived["tool"] or 0) > 0.5


@pytest.mark.parametrize(
    "method",
    [
        Ram(shared="sum", rescale=0.2),
        Ram(name="ram", shared="elect", shared_power=0.5),
        Ram(rescale="auto"),
        Ram(rescale="auto", scope="tensor", shared="elect", bound=1.5),
        Ram(rescale="auto", shared="importance"),
    ],
    ids=["sum", "elect", "auto", "auto-tensor-elect", "auto-importance"],
)
def test_the_contract_is_kept(method: Ram) -> None:
    assert_contract(method, weights=(0.5, 1.0, 1.7))


def test_each_threshold_of_a_recipe_measures_its_own_energies_over_the_whole_model(
    tiny: Sources, tmp_path: Path
) -> None:
    method = {"name": "ram_plus", "rescale": "auto"}
    rules = [{"tensors": "*mlp*", "threshold": 2e-4}]
    record = merge(tiny.recipe(method, rules=rules), tmp_path / "ruled")
    assert record.timing.folds == 1
    ruled = read_checkpoint(tmp_path / "ruled")
    for threshold, name in ((2e-4, "model.layers.0.mlp.up_proj.weight"), (1e-5, "lm_head.weight")):
        merge(tiny.recipe({**method, "threshold": threshold}), tmp_path / name)
        assert_same_bits(ruled[name], read_checkpoint(tmp_path / name)[name], name)
