"""Breadcrumbs, DELLA, SCE, slerp, Model Stock, nearswap and RAM's `top`, by hand, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.engine.estimate import blocks
from agentmerge.engine.plan import Job
from agentmerge.errors import RecipeError
from agentmerge.methods.base import Context, Work
from agentmerge.methods.registry import resolve_method
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import LEAF, TensorSpec
from agentmerge.testing import assert_kernel_contract, assert_same_tensors, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.testing import Sources

TEN = [1, -2, 3, -4, 5, -6, 7, -8, 9, -10]


def bound(settings: Any, *names: str, **weights: float) -> Any:
    return resolve_method(settings).bind(Context(0, dict.fromkeys(names, 1.0) | weights))


@pytest.mark.parametrize(
    ("density", "gamma", "kept"),
    [
        (0.5, 0.2, slice(3, 8)),
        (0.5, 0, slice(5, 10)),
        (0.9, 0.2, slice(0, 9)),  # nothing is left to leave out below
        (1, 0.2, slice(0, 10)),
        (0.1, 0.95, slice(0, 1)),
        (0.05, 0, slice(0, 0)),
    ],
)
def test_breadcrumbs_leaves_so_many_below_the_largest(
    stack_of: Any, merged: Any, density: float, gamma: float, kept: slice
) -> None:
    expected = np.zeros(10)
    expected[kept] = TEN[kept]
    method = resolve_method({"name": "breadcrumbs", "density": density, "gamma": gamma})
    np.testing.assert_array_equal(merged(method, stack_of(np.zeros(10), [TEN])), expected)
    rescaled = merged(method.varied({"rescale": True}), stack_of(np.zeros(10), [TEN]))
    assert np.abs(rescaled).sum() == pytest.approx(55 if expected.any() else 0, rel=1e-6)


def test_every_element_at_a_cut_stays(stack_of: Any, merged: Any) -> None:
    tau = [1, 1, 1, 2, 3, 3, 3, -3, 4, 4]
    method = resolve_method({"name": "breadcrumbs", "density": 0.5, "gamma": 0.2})
    assert merged(method, stack_of(np.zeros(10), [tau])).tolist() == [0, 0, 0, 2, 3, 3, 3, -3, 0, 0]


def test_ranks_over_the_model_or_each_tensor(tiny: Sources, tmp_path: Path) -> None:
    """Over the model as TIES and RAM's `top` have it: the same mask, as Breadcrumbs without outliers leaves it."""
    trimmed = {"name": "breadcrumbs", "density": 0.1, "gamma": 0, "scope": "model", "then": "ram_plus"}
    record = merge(tiny.recipe({"name": "ram_plus", "top": 0.1}), tmp_path / "top")
    again = merge(tiny.recipe(trimmed), tmp_path / "trimmed")
    assert_same_tensors(read_checkpoint(tmp_path / "top"), read_checkpoint(tmp_path / "trimmed"))
    scales = [agent.scale for agent in record.survey.agents.values()]
    assert scales == [agent.scale for agent in again.survey.agents.values()]
    plain = merge(tiny.recipe("ram_plus"), tmp_path / "plain")
    assert scales != [agent.scale for agent in plain.survey.agents.values()]


def test_top_counts_what_is_largest_alone(stack_of: Any, merged: Any) -> None:
    stack = stack_of(np.zeros(4), [[4, 1, 1, 0], [2, 8, 1, 1]])
    assert merged(resolve_method({"name": "ram", "top": 0.25}), stack).tolist() == [4, 8, 0, 0]
    assert merged(resolve_method({"name": "ram", "top": 0.5}), stack).tolist() == [3, 4.5, 1, 0]  # ties stay


def test_della_keeps_large_changes_more_often_and_the_mean(stack_of: Any, merged: Any) -> None:
    n = 40_000
    tau = np.linspace(1, 2, n)
    method = bound({"name": "della_linear", "density": 0.5, "epsilon": 0.4, "seed": 3}, "a")
    found = merged(method, stack_of(np.zeros(n), [tau]))
    kept = found != 0
    assert kept[: n // 4].mean() == pytest.approx(0.2, abs=0.02)
    assert kept[-n // 4 :].mean() == pytest.approx(0.8, abs=0.02)
    assert found.sum() == pytest.approx(tau.sum(), rel=0.03)


def test_sce_selects_by_variance_weighs_by_energy_and_erases_signs(stack_of: Any, merged: Any) -> None:
    stack = stack_of(np.zeros(4), [[3, 1, 2, 0], [-1, 1, 4, 0.5]])
    whole = merged(resolve_method({"name": "sce", "floor": 100}), stack)
    np.testing.assert_allclose(whole, [3, 1, 3, 0.5])
    energies = np.array([14.0, 18.25])
    mean = (energies @ [2, 4]) / energies.sum()
    np.testing.assert_allclose(merged(resolve_method("sce"), stack), [3, 1, mean, 0.5], rtol=1e-6)
    half = merged(resolve_method({"name": "sce", "select_topk": 0.67}), stack)
    energies = np.array([13.0, 17.0])
    np.testing.assert_allclose(half, [3, 0, (energies @ [2, 4]) / energies.sum(), 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ([1, 2], [2, 4], [1.5, 3]),  # one direction: the mean
        ([1, 0], [-1, 0], [0, 0]),  # no arc
        ([0, 0], [2, 4], [2**0.5, 2 * 2**0.5]),  # beside no change at all
    ],
)
def test_slerp_where_there_is_no_arc(stack_of: Any, merged: Any, one: Any, two: Any, expected: Any) -> None:
    found = merged(resolve_method("slerp"), stack_of([0, 0], [one, two]))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_multislerp_of_opposite_changes_is_the_base_and_of_one_agent_the_agent(stack_of: Any, merged: Any) -> None:
    method = resolve_method("multislerp")
    assert merged(method, stack_of([1, 2], [[2, 4], [0, 0]])).tolist() == [1, 2]
    np.testing.assert_allclose(merged(method, stack_of([0, 0], [[3, 4]])), [3, 4], rtol=1e-6)


def test_model_stock_warns_where_the_merge_is_the_base(inputs: Path, golden_recipe: Any, tmp_path: Path) -> None:
    record = merge(golden_recipe(inputs, "model_stock"), tmp_path / "out")
    assert record.learned["model_stock_ratio"] < 0.2
    assert any("nearly the base" in warning for warning in record.warnings)
    assert resolve_method("model_stock").told(Survey(), ("a", "b")).notes == ()


def test_blocks_of_a_method_that_must_see_rows_hold_whole_rows_and_leaves() -> None:
    tensor = TensorSpec("w", "F32", (5000, 96))
    job = Job("w", tensor, (), work=Work(reach="row"))
    found = list(blocks(job, 100_000))
    assert len(found) > 10
    assert all(block.start % 96 == 0 and block.start % LEAF == 0 for block in found)
    assert sum(block.elements for block in found) == tensor.elements


def test_the_kernel_of_nearswap_is_its_definition_below_a_millionth_too() -> None:
    assert_kernel_contract(resolve_method({"name": "nearswap", "t": 1e-7}), agents=(1,))


@pytest.mark.parametrize(
    ("method", "agents", "words"),
    [
        ("slerp", {"a": 1.0, "b": 1.0, "c": 1.0}, "two agents, found 3"),
        ("slerp", {"a": 1.0, "b": -1.0}, "add up to 0"),
        ("multislerp", {"a": 1.0, "b": -1.0}, "add up to 0"),
        ("nearswap", {"a": 1.0, "b": 1.0}, "one agent, found 2"),
        ("model_stock", {"a": 1.0}, "two agents or more"),
        ("sce", {"a": 1.0, "b": -0.5}, "at least 0"),
        ({"name": "ram", "top": {"a": 0.5}}, {"a": 1.0, "b": 1.0}, "method.top: nothing for agent 'b'"),
        ({"name": "breadcrumbs", "gamma": {"c": 0.5}}, {"a": 1.0}, "method.gamma: no agent 'c'"),
        ({"name": "della", "epsilon": {"c": 0.1}}, {"a": 1.0}, "method.epsilon: no agent 'c'"),
        ({"name": "della", "density": 0.9}, {"a": 1.0}, "is no probability"),
    ],
    ids=str,
)
def test_what_can_not_be_merged_is_refused(method: Any, agents: dict[str, float], words: str) -> None:
    with pytest.raises(RecipeError) as found:
        resolve_method(method).bind(Context(0, agents))
    assert words in str(found.value)
