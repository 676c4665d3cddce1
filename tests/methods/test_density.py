"""A density may be one number, or one for each agent by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import Recipe, merge, probe
from agentmerge.errors import RecipeError
from agentmerge.methods.dare import Dare, drop
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.ties import Ties
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    assert_same_tensors,
    random_stack,
    read_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

EACH = {"tool": 0.3, "code": 0.6, "memory": 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "dare", "density": EACH},
        {"name": "dare", "density": EACH, "then": {"name": "ties", "density": EACH, "normalize": False}},
        {"name": "dare", "density": 0.5, "then": {"name": "ties", "density": EACH}},
        {"name": "ties", "density": EACH},
        {"name": "ties", "density": EACH, "scope": "tensor", "zero_sign": "plus"},
        {"name": "calibrate", "then": {"name": "dare", "density": EACH, "then": "ram"}},
    ],
    ids=str,
)
def test_the_contract_is_kept(settings: dict[str, Any]) -> None:
    assert_contract(resolve_method(settings), weights=(1.0, 0.5, 2.0))


@pytest.mark.usefixtures("either_way")
def test_dare_keeps_of_each_agent_what_it_would_keep_at_that_density_alone() -> None:
    stack = random_stack(3, elements=4097)
    found = drop(stack, EACH, 7).task_vectors()
    for t, name in enumerate(sorted(EACH)):
        assert_same_bits(found[t], drop(stack, EACH[name], 7).task_vectors()[t], name)
    assert_same_bits(found[1], stack.task_vectors()[1], "density 1 changes nothing")


@pytest.mark.usefixtures("either_way")
def test_ties_trims_each_agent_by_its_own_density(stack_of: Any, merged: Any) -> None:
    """Of a's ten elements five stay, from 6 on, of b's all; the last one is a's, whose sign is elected."""
    a, b = np.arange(1, 11), np.zeros(10)
    b[[0, 9]] = 2, -4
    found = merged(Ties(density={"b": 1.0, "a": 0.4}), stack_of(np.zeros(10), [a, b]))
    assert found.tolist() == [2, 0, 0, 0, 0, 6, 7, 8, 9, 10]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", ["ties", "dare"])
def test_the_same_number_for_each_is_that_number_for_all(tiny: Sources, tmp_path: Path, name: str) -> None:
    for out, density in {"one": 0.4, "each": dict.fromkeys(tiny.agents, 0.4)}.items():
        merge(tiny.recipe({"name": name, "density": density}), tmp_path / out)
    assert_same_tensors(read_checkpoint(tmp_path / "each"), read_checkpoint(tmp_path / "one"))


def test_the_record_holds_what_was_written_and_is_merged_again(tiny: Sources, tmp_path: Path) -> None:
    each = {"tool": 0.01, "code": 0.02, "memory": 1.0}
    recipe = tiny.recipe({"name": "ties", "density": each})
    record = merge(recipe, tmp_path / "out")
    assert record.recipe["method"]["density"] == each
    assert Recipe.parse(record.recipe) == Recipe.parse(recipe)
    smallest = {name: found["smallest_kept"] for name, found in record.learned["trim"].items()}
    assert smallest["memory"] == 0
    assert smallest["tool"] >= smallest["code"] > 0
    assert probe(recipe, full=True).survey.elements == record.survey.elements


def test_methods_of_equal_densities_are_equal_and_count_as_one_key() -> None:
    one, other = Dare(density={"a": 0.5, "b": 1}), Dare(density={"b": 1.0, "a": 0.5})
    assert one == other
    assert hash(one) == hash(other)
    assert one != Dare(density=0.5)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    ("density", "words"),
    [
        ({"code": 0.5, "tol": 0.5}, ["density: no agent 'tol'. Did you mean 'tool'?", "nothing for agent 'tool'"]),
        ({"code": 0.5}, ["density: nothing for agent 'tool', expected the kept fraction of every agent"]),
        ({}, ["nothing for agent 'code'", "nothing for agent 'tool'"]),
        ({"code": 0.5, "tool": 0}, ["density.tool: Input should be greater than 0, found 0"]),
        ({"code": 0.5, "tool": 1.5}, ["density.tool: Input should be less than or equal to 1"]),
        ({"code": True, "tool": 1}, ["density.code: expected a number, not true or false"]),
        ([0.5, 0.5], ["density: Input should be a valid number, found [0.5, 0.5]"]),
        (True, ["density: expected a number"]),
    ],
)
def test_what_fits_no_agent_is_one_complaint_each_with_its_path(density: Any, words: list[str], *, inner: bool) -> None:
    method = {"name": "ties", "density": density}
    path = "method.then." if inner else "method."
    recipe = {"base": "b", "agents": {"code": "c", "tool": "t"}}
    with pytest.raises(RecipeError) as raised:
        Recipe.parse({**recipe, "method": {"name": "dare", "then": method} if inner else method})
    text = str(raised.value)
    assert all(word in text for word in words)
    assert all(f"{path}density" in line for line in text.splitlines())
    assert len(text.splitlines()) == max(1, sum("agent '" in word for word in words))
