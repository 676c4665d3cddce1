"""Fisher merging is MergeLM's formula, nearer to its exact value than MergeLM's own float32 sums are."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import Recipe, merge
from agentmerge.errors import AlignmentError, DataError, RecipeError
from agentmerge.methods.fisher import Fisher, ImportanceNorm
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    make_agents,
    random_base,
    read_checkpoint,
    survey_of,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

ORDER = ("code", "tool", "memory")
"""Of the agents in the golden files."""
FLOOR = 1e-6
KINDS = {"plain": False, "normalized": True}
FAR = {"plain": 67, "normalized": 74}
"""Of 102,976 elements, those on which we and the golden file are 3 ulp apart."""
COEFFICIENT_STEPS = (-1, 2, 0)
"""Float32 steps between the exact coefficients and those of the golden file, whose norms were summed in float32."""


class Golden:
    """The golden numbers as plain vectors."""

    def __init__(self, root: Path, whole: Any) -> None:
        self.base = whole(root / "base")
        self.agents = [whole(root / name) for name in ORDER]
        self.importance = [whole(root / "importance" / f"{name}.safetensors") for name in ORDER]
        self.expected = {k: whole(root / "expected" / f"fisher__mergelm_formula_{k}.safetensors") for k in KINDS}

    def coefficients(self, kind: str) -> Array:
        """float64 [3]: 1/3 each, or 1/3 of the shares of the inverse norms."""
        if kind == "plain":
            return np.full(3, 1 / 3)
        inverse = 1 / (np.array([np.sqrt((f.astype("f8") ** 2).sum()) for f in self.importance]) + FLOOR)
        return inverse / inverse.sum() / 3

    def exact(self, kind: str) -> Array:
        """The formula in float64."""
        factors = self.coefficients(kind)[:, None] * (np.array(self.importance, np.float64) + FLOOR)
        return (factors * np.array(self.agents, np.float64)).sum(axis=0) / factors.sum(axis=0)


@pytest.fixture
def numbers(golden: Path, whole: Any) -> Golden:
    return Golden(golden, whole)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("kind", KINDS)
def test_the_float32_output_is_within_one_ulp_of_the_exact_formula_and_so_near_the_golden_file(
    golden: Path, numbers: Golden, tmp_path: Path, golden_recipe: Any, whole: Any, ulps: Any, kind: str
) -> None:
    """Within 2 ulp of the golden file, but for the elements where that file itself is at least 2 ulp off."""
    merge(golden_recipe(golden, {"name": "fisher", "normalize": KINDS[kind]}), tmp_path / "out")
    found, expected, exact = whole(tmp_path / "out"), numbers.expected[kind], numbers.exact(kind).astype(np.float32)
    assert int(ulps(found, exact).max()) == 1
    assert int(ulps(expected, exact).max()) == 3
    apart = ulps(found, expected)
    assert int((apart > 2).sum()) == FAR[kind]
    assert int(apart.max()) == 3
    assert int(ulps(expected, exact)[apart > 2].min()) >= 2


def test_the_plain_golden_file_is_the_sum_of_values_in_float32(numbers: Golden) -> None:
    """Bit for bit, with the coefficient 1/3 and the agents in the order code, tool, memory."""
    assert_same_bits(values_form(numbers, np.full(3, 1 / 3, np.float32)), numbers.expected["plain"], "values form")


def test_the_normalized_golden_file_is_the_same_sum_with_coefficients_two_steps_from_ours(numbers: Golden) -> None:
    steps = np.array(COEFFICIENT_STEPS, np.int32)
    coefficients = (numbers.coefficients("normalized").astype(np.float32).view(np.int32) + steps).view(np.float32)
    assert_same_bits(values_form(numbers, coefficients), numbers.expected["normalized"], "values form")


def test_the_sum_of_values_depends_on_the_order_of_the_agents_by_more_than_our_error(
    inputs: Path, whole: Any, ulps: Any
) -> None:
    numbers, third = Golden(inputs, whole), np.full(3, 1 / 3, np.float32)
    found = [values_form(numbers, third, order) for order in permutations(range(3))]
    assert max(int(ulps(one, other).max()) for one, other in combinations(found, 2)) == 5


def values_form(numbers: Golden, coefficients: Array, order: tuple[int, ...] = (0, 1, 2)) -> Array:
    """Sum of f * agent over sum of f, every operation in float32, the agents in the given order."""
    above, below = np.zeros((2, numbers.base.size), np.float32)
    for t in order:
        factor = coefficients[t] * (numbers.importance[t] + np.float32(FLOOR))
        above += factor * numbers.agents[t]
        below += factor
    return above / below


# by hand


def test_the_mean_is_weighted_by_importance(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, 1], [[5, 2], [1, 3]], importance=[[3, 1], [1, 1]])
    np.testing.assert_array_equal(merged(Fisher(floor=0), stack), [1 + 3 * 4 / 4, 1 + (1 + 2) / 2])


def test_a_weight_multiplies_the_importance(stack_of: Any, merged: Any) -> None:
    weighted = stack_of([0, 0], [[4, 2], [0, 1]], weights=(3.0, 1.0), importance=[[1, 1], [1, 1]])
    important = stack_of([0, 0], [[4, 2], [0, 1]], importance=[[3, 3], [1, 1]])
    expected = [3.0, 7 / 4]
    np.testing.assert_array_equal(merged(Fisher(floor=0), weighted), expected)
    np.testing.assert_array_equal(merged(Fisher(floor=0), important), expected)


def test_the_floor_is_added_to_every_importance(stack_of: Any, merged: Any) -> None:
    stack = stack_of([0, 0], [[4, 0], [0, 4]], importance=[[2, 0], [0, 2]])
    np.testing.assert_array_equal(merged(Fisher(floor=1), stack), [4 * 3 / 4, 4 * 3 / 4])


def test_a_common_weight_cancels_and_scale_does_not(stack_of: Any, merged: Any) -> None:
    rows = ([0, 0], [[4, 2], [0, 1]])
    importance = [[1, 2], [3, 2]]
    plain, heavy = (merged(Fisher(), stack_of(*rows, weights=(w, w), importance=importance)) for w in (1.0, 8.0))
    np.testing.assert_array_equal(heavy, plain)
    np.testing.assert_array_equal(merged(Fisher(scale=0.5), stack_of(*rows, importance=importance)), plain / 2)


def test_an_element_that_matters_to_no_agent_keeps_the_bases_bits(stack_of: Any, merged: Any) -> None:
    stack = stack_of([-0.0, 1, 1], [[2, 2, 2], [3, 3, 3]], importance=[[0, 0, 1], [0, 0, 0]])
    for floor in (0.0, 1e-6):
        found = merged(Fisher(floor=floor), stack)
        assert_same_bits(found[:2], stack.base[:2], "of no importance")
        np.testing.assert_allclose(found[2], 2, atol=1e-5)


def test_normalizing_takes_the_size_of_an_agents_importance_away(stack_of: Any, merged: Any) -> None:
    rows, importance = ([0, 0], [[4, 2], [0, 1]]), np.array([[3, 4], [4, 3]])
    expected = merged(Fisher(floor=0, normalize=True), stack_of(*rows, importance=importance))
    np.testing.assert_allclose(expected, [4 * 3 / 7, (2 * 4 + 1 * 3) / 7], rtol=1e-6)
    louder = stack_of(*rows, importance=importance * [[1000], [1]])
    np.testing.assert_allclose(merged(Fisher(floor=0, normalize=True), louder), expected, rtol=1e-6)
    assert merged(Fisher(floor=0), louder)[0] > 3.9


def test_an_agent_of_no_importance_anywhere_has_no_say_even_when_normalized_without_floor(
    stack_of: Any, merged: Any
) -> None:
    stack = stack_of([0, 0], [[4, 2], [1, 1]], importance=[[0, 0], [1, 0]])
    np.testing.assert_array_equal(merged(Fisher(floor=0, normalize=True), stack), [1, 0])
    silent = stack_of([0, 0], [[4, 2], [1, 1]], importance=[[0, 0], [0, 0]])
    np.testing.assert_array_equal(merged(Fisher(floor=0, normalize=True), silent), [0, 0])


@pytest.mark.usefixtures("either_way")
def test_the_norm_is_over_all_merged_elements(stack_of: Any) -> None:
    left = stack_of([0, 0], [[1, 1]], "left", importance=[[3, 0]])
    right = stack_of([0], [[1]], "right", importance=[[4]])
    survey = survey_of(Fisher(normalize=True), [left, right])
    assert survey.total(ImportanceNorm()).total().tolist() == [25.0]


def test_it_asks_for_the_norms_only_where_they_count(stack_of: Any) -> None:
    survey = survey_of(Fisher(), [])
    assert Fisher().ask(survey) == ()
    assert Fisher(normalize=True).ask(survey) == (ImportanceNorm(),)


# recipes and refusals


def sources_with_importance(folder: Path, **changed: Mapping[str, Array] | None) -> tuple[Sources, dict[str, Any]]:
    """Two small tensors, three agents; `changed` replaces an agent's importance, None leaves it out."""
    sources = make_agents(folder / "in", base=random_base(0, {"w": (7, 9), "model.norm.weight": (5,)}))
    shapes = {name: array.shape for name, array in read_checkpoint(sources.base).items()}
    agents: dict[str, Any] = {}
    for t, name in enumerate(sorted(sources.agents)):
        plain = {tensor: np.full(shape, 1.0 + t, np.float32) for tensor, shape in shapes.items()}
        drawn = changed.get(name, plain)
        agents[name] = {"source": str(sources.agents[name])}
        if drawn is not None:
            agents[name]["importance"] = str(write_checkpoint(folder / f"importance-{name}", drawn, config={}))
    return sources, agents


def test_importance_is_required_of_every_agent(tmp_path: Path) -> None:
    sources, agents = sources_with_importance(tmp_path, memory=None)
    for method in ("fisher", {"name": "dare", "then": "fisher"}, {"name": "calibrate", "then": "fisher"}):
        with pytest.raises(
            RecipeError, match=r"agents\.memory\.importance: missing, method '\w+' reads the importance"
        ):
            Recipe.parse({**sources.recipe(method), "agents": agents})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"w": np.ones((9, 7), "f4")}, r"w: importance of agent 'tool' .* has shape \[9, 7\], expected shape \[7, 9\]"),
        ({}, r"w: importance of agent 'tool' .* has no such tensor, expected shape \[7, 9\]"),
    ],
)
def test_importance_of_another_shape_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict[str, Array], message: str
) -> None:
    drawn = {"model.norm.weight": np.ones(5, "f4"), **changed}
    sources, agents = sources_with_importance(tmp_path, tool=drawn)
    recipe = {**sources.recipe("fisher"), "agents": agents}
    with pytest.raises(AlignmentError, match=message):
        merge(recipe, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir() if "out" in path.name} == set()
    taken = {"rules": [{"tensors": "w", "take": "base"}], "inputs": {"unchanged": "allow"}}
    merge({**recipe, **taken}, tmp_path / "out")  # nothing reads it now


def test_an_agent_skipped_by_a_rule_has_no_importance_there(tmp_path: Path) -> None:
    sources, agents = sources_with_importance(tmp_path)
    rules = [{"tensors": "w", "skip": ["memory", "tool"]}]
    recipe = sources.recipe({"name": "fisher", "floor": 0}, rules=rules, output={"dtype": "float32"})
    merge({**recipe, "agents": agents}, tmp_path / "out")
    alone = read_checkpoint(sources.agents["code"])["w"].astype("f4")
    assert_same_bits(read_checkpoint(tmp_path / "out")["w"], alone, "the only agent that is left")


ABSENT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a rule skips b", {"rules": [{"tensors": "x", "skip": "b"}]}),
    ("b lacks the tensor", {"inputs": {"missing": "base"}}),
    ("both", {"rules": [{"tensors": "x", "skip": "b"}], "inputs": {"missing": "base"}}),
)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("importance", [1.0, 1e-8], ids=["important", "below the floor"])
@pytest.mark.parametrize(("why", "sections"), ABSENT, ids=[why for why, _ in ABSENT])
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fisher"},
        {"name": "fisher", "normalize": True},
        {"name": "dare", "density": 1.0, "then": "fisher"},
        {"name": "dare", "density": 1.0, "then": {"name": "dare", "density": 1.0, "then": "fisher"}},
    ],
    ids=str,
)
def test_an_absent_agent_takes_no_part_not_by_the_floor_either(
    tmp_path: Path, method: dict[str, Any], why: str, sections: dict[str, Any], importance: float
) -> None:
    """X is a's alone there, y is both agents'; where b is equal to the base instead, its importance does count."""
    files = {"base": {"x": 1, "y": 1}, "a": {"x": 2, "y": 2}, "b": {"x": 3, "y": 3}}
    if "inputs" in sections:
        del files["b"]["x"]
    agents = {}
    for name, numbers in files.items():
        arrays = {tensor: np.full(3, value, np.float32) for tensor, value in numbers.items()}
        path = write_checkpoint(tmp_path / name, arrays)
        known = {tensor: np.full(3, importance, np.float32) for tensor in numbers}
        agents[name] = {"source": str(path), "importance": str(write_checkpoint(tmp_path / f"{name}-i", known))}
    recipe = {"base": agents.pop("base")["source"], "agents": agents, "method": method, **sections}
    merge(recipe, tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    assert found["x"].tolist() == [2, 2, 2], why
    assert 2 < found["y"][0] < 3


@pytest.mark.usefixtures("either_way")
def test_an_agent_equal_to_the_base_counts_with_its_importance(tmp_path: Path) -> None:
    for name, value in {"base": 1, "a": 2, "b": 1}.items():
        write_checkpoint(tmp_path / name, {"x": np.full(3, value, np.float32)})
    ones = str(write_checkpoint(tmp_path / "ones", {"x": np.ones(3, np.float32)}))
    agents = {name: {"source": str(tmp_path / name), "importance": ones} for name in "ab"}
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": "fisher", "inputs": {"unchanged": "allow"}}
    merge(recipe, tmp_path / "out")
    assert read_checkpoint(tmp_path / "out")["x"].tolist() == [1.5, 1.5, 1.5]


@pytest.mark.usefixtures("either_way")
def test_where_every_agent_is_absent_the_base_stays(tmp_path: Path) -> None:
    sources, agents = sources_with_importance(tmp_path)
    rules = [{"tensors": "w", "skip": list(agents)}]
    recipe = sources.recipe("fisher", rules=rules, inputs={"unchanged": "allow"})
    merge({**recipe, "agents": agents}, tmp_path / "out")
    assert_same_bits(read_checkpoint(tmp_path / "out")["w"], read_checkpoint(sources.base)["w"], "nobody is left")


def test_another_importance_does_not_resume_and_is_named_in_the_record(tmp_path: Path) -> None:
    sources, agents = sources_with_importance(tmp_path)
    record = merge({**sources.recipe("fisher"), "agents": agents}, tmp_path / "out")
    assert {f"{name}.importance" for name in agents} <= record.sources.keys()
    assert Recipe.parse(record.recipe).agents["code"].importance == agents["code"]["importance"]


@pytest.mark.parametrize("method", [Fisher(), Fisher(normalize=True, scale=0.7)], ids=["plain", "normalized"])
def test_the_contract_is_kept(method: Fisher) -> None:
    assert_contract(method, weights=(0.5, 1.0, 1.7))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-6])
def test_an_importance_that_is_no_importance_is_named_with_its_agent(tmp_path, bad):
    base = {"w.weight": np.ones((4, 4), np.float32), "steps": np.arange(3)}
    sources = make_agents(tmp_path / "in", base=base, densities=(0.5, 0.5, 0.5))
    recipe = sources.recipe("fisher")
    for name, agent in recipe["agents"].items():
        values = np.ones((4, 4), np.float32)
        values[1, 2] = bad if name == "tool" else 0
        folder = write_checkpoint(tmp_path / name, {"w.weight": values})
        recipe["agents"][name] = {"source": agent, "importance": str(folder)}
    with pytest.raises(DataError, match=r"w.weight: importance of agent 'tool'.*NaN, inf or negative"):
        merge(recipe, tmp_path / "out")


def test_integer_tensors_need_no_importance(tmp_path):
    base = {"w.weight": np.ones((4, 4), np.float32), "steps": np.arange(3)}
    sources = make_agents(tmp_path / "in", base=base, densities=(0.5, 0.5, 0.5))
    recipe = sources.recipe("fisher")
    for name, agent in recipe["agents"].items():
        folder = write_checkpoint(tmp_path / name, {"w.weight": np.ones((4, 4), np.float32)})
        recipe["agents"][name] = {"source": agent, "importance": str(folder)}
    assert merge(recipe, tmp_path / "out").tensors.copied[0].name == "steps"
