"""Region keeps what one agent changed alone, with others, or at all, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import Recipe, merge
from agentmerge.errors import RecipeError
from agentmerge.methods.ram import Ram
from agentmerge.methods.region import Region
from agentmerge.testing import Sources, assert_contract, assert_same_bits, random_stack

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Stack


@pytest.fixture
def three(stack_of: Any) -> Stack:
    """Agents a, b, c; columns: a alone, b alone, a and b, a and c, all, none, a below the threshold."""
    return stack_of(
        [1, 1, 1, 1, 1, -0.0, 1],
        [[3, 1, 5, 7, 9, -0.0, 1 + 2e-6], [1, 2, 4, 1, 2, -0.0, 1], [1, 1, 1, 2, 2, -0.0, 1]],
    )


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("unique", [3, 1, 1, 1, 1, 0, 1]),
        ("shared", [1, 1, 5, 7, 9, 0, 1]),
        ("changed", [3, 1, 5, 7, 9, 0, 1]),
    ],
)
def test_the_region_gets_the_agents_own_numbers_and_everything_else_the_bases(
    three: Stack, merged: Any, keep: Any, expected: list[float]
) -> None:
    assert_same_bits(merged(Region(agent="a", keep=keep), three), np.array([*expected[:5], -0.0, 1], "f4"), keep)


def test_factor_dilutes_the_region_as_averaging_does(three: Stack, merged: Any) -> None:
    found = merged(Region(agent="a", keep="changed", factor=0.5), three)
    np.testing.assert_array_equal(found, [2, 1, 3, 4, 5, 0, 1])


def test_an_agent_without_the_region_leaves_the_base(three: Stack, merged: Any) -> None:
    assert_same_bits(merged(Region(agent="c"), three), three.base, "c changed nothing alone")


def test_weights_play_no_part(stack_of: Any, merged: Any) -> None:
    rows = ([0, 0], [[2, 2], [0, 2]])
    plain, weighted = stack_of(*rows), stack_of(*rows, weights=(0.5, 3.0))
    np.testing.assert_array_equal(merged(Region(agent="a"), weighted), merged(Region(agent="a"), plain))


def test_the_unique_regions_of_all_agents_are_rams_unique_elements(merged: Any) -> None:
    stack = random_stack(5, elements=2000, dtypes=("BF16", "F32"))
    changed = np.abs(stack.task_vectors()) > np.float32(1e-5)
    ram, alone = merged(Ram(name="ram"), stack), changed.sum(axis=0) == 1
    for t, name in enumerate(stack.names):
        place = alone & changed[t]
        assert_same_bits(merged(Region(agent=name), stack)[place], ram[place], name)


@pytest.mark.parametrize(
    ("agent", "message"),
    [("cdoe", "no agent 'cdoe'. Did you mean 'code'?"), ("", "no agent ''. Known: code, memory, tool.")],
)
def test_an_unknown_agent_is_refused_with_a_hint(tiny: Sources, agent: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(tiny.recipe({"name": "region", "agent": agent}))
    assert message in str(caught.value)
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(tiny.recipe({"name": "region", "agent": "code"}, rules=[{"tensors": "*", "agent": agent}]))
    assert message in str(caught.value)


def test_the_agent_is_checked_inside_a_wrapper_too(tiny: Sources) -> None:
    for wrapper in ("dare", "calibrate"):
        with pytest.raises(RecipeError, match="Did you mean 'tool'"):
            Recipe.parse(tiny.recipe({"name": wrapper, "then": {"name": "region", "agent": "tol"}}))


@pytest.mark.usefixtures("either_way")
def test_a_diluted_region_is_largely_lost_in_bfloat16(inputs: Path, tmp_path: Path, golden_recipe: Any) -> None:
    """The paper's figure 3 with real rounding: a third of a small change rounds back to the base."""
    method = {"name": "region", "agent": "code", "keep": "unique"}
    lost = []
    for factor in (1, 1 / 3):
        recipe = golden_recipe(inputs, {**method, "factor": factor}, output={"dtype": "base"})
        record = merge(recipe, tmp_path / f"out-{factor}")
        lost.append(record.rounding["code"].changed_lost or 0.0)
    assert lost[0] == 0
    assert lost[1] > 0.02


@pytest.mark.parametrize(
    "method", [Region(agent="code"), Region(agent="tool", keep="shared", factor=1 / 3)], ids=["unique", "shared"]
)
def test_the_contract_is_kept(method: Region) -> None:
    assert_contract(method)
