"""The automatic scale by hand, and the equation of the paper that it solves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.errors import RecipeError
from agentmerge.methods.ram import Ram
from agentmerge.methods.ram_energies import Energies, balanced_scales, scales_from
from agentmerge.methods.registry import resolve_method
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import LEAF, as_float32
from agentmerge.testing import Sources, random_stack, read_checkpoint, survey_of, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Stack

TAUS = [[2, 0, 1, 1, 0], [0, 4, 1, -1, 0], [0, 0, 0, 2, 0]]
"""a and b have one unique element each, all three share the fourth; c has nothing unique."""


@pytest.fixture
def three(stack_of: Any) -> Stack:
    return stack_of(np.zeros(5), TAUS)


def energies(stack: Stack, shared: Any = "mean", power: float = 1.0) -> list[list[float]]:
    return Energies(1e-5, shared, power).observe(stack).total().reshape(3, -1).tolist()


# by hand


@pytest.mark.usefixtures("either_way")
def test_the_three_energies(three: Stack) -> None:
    """The shared elements merge to (1 + 1) / 2 = 1 and (1 - 1 + 2) / 3 = 2/3."""
    unique, shared, kept = energies(three)
    assert unique == [4, 16, 0]
    assert shared == [1 + 1, 1 + 1, 4]
    third = float(np.float32(2 / 3))
    assert kept == [1 * 1 + 1 * third, 1 * 1 - 1 * third, 2 * third]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("shared", "power", "expected"),
    [
        ("mean", 1, [1 + (2 - 5 / 3) / 4, 1 + (2 - 1 / 3) / 16, 1]),
        ("sum", 1, [1 + (2 - 4) / 4, 1 + (2 - 0) / 16, 1]),  # shared elements: 2 and 2
        ("mean", 0.5, [1 + (2 - 2 / 2**0.5 - 2 / 3**0.5) / 4, 1 + (2 - 2 / 2**0.5 + 2 / 3**0.5) / 16, 1]),
        ("elect", 1, [1 + (2 - 1 - 1.5) / 4, 1 + (2 - 1 + 1.5) / 16, 1]),  # b is outvoted: (1 + 2) / 2
    ],
)
def test_lambda(three: Stack, shared: Any, power: float, expected: list[float]) -> None:
    found = scales_from(Energies(1e-5, shared, power).observe(three), None)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_the_merge_by_hand_keeps_every_agents_change_that_has_unique_elements(three: Stack, merged: Any) -> None:
    found = merged(Ram(rescale="auto"), three)
    np.testing.assert_allclose(found, [2 * 13 / 12, 4 * 53 / 48, 1, 2 / 3, 0], rtol=1e-6)
    a, b, c = np.array(TAUS)
    np.testing.assert_allclose([found @ a / (a @ a), found @ b / (b @ b)], [1, 1], rtol=1e-6)
    assert found @ c / (c @ c) == pytest.approx(1 / 3)  # nothing unique to make up for it


@pytest.mark.usefixtures("either_way")
def test_weights_come_before_the_energies(stack_of: Any) -> None:
    """With u = weight * tau: u_a = (1, 1), u_b = (0, 3); the shared element merges to 2."""
    stack = stack_of([0, 0], [[2, 2], [0, 1]], weights=(0.5, 3.0))
    assert energies(stack) == [[1, 0], [1, 9], [2, 6]]
    found = scales_from(Energies(1e-5, "mean", 1.0).observe(stack), None)
    assert found == (1 + (1 - 2) / 1, 1.0)


def test_lambda_is_at_least_0_and_at_most_the_bound(stack_of: Any, merged: Any) -> None:
    """Two agents whose sum is twice as long as either: 1 + (9 - 18) / 1 is -8."""
    twins = stack_of([0, 0, 0], [[1, 0, 3], [0, 1, 3]])
    assert scales_from(Energies(1e-5, "sum", 1.0).observe(twins), None) == (0, 0)
    np.testing.assert_array_equal(merged(Ram(rescale="auto", shared="sum"), twins), [0, 0, 6])
    foes = stack_of([0, 0, 0], [[1, 0, 3], [0, 1, -3]])  # merged to 0: 1 + (9 - 0) / 1
    sums = Energies(1e-5, "mean", 1.0).observe(foes)
    assert scales_from(sums, None) == (10, 10)
    assert scales_from(sums, 2.5) == (2.5, 2.5)
    np.testing.assert_array_equal(merged(Ram(rescale="auto", bound=2.5), foes), [2.5, 2.5, 0])
    np.testing.assert_array_equal(merged(Ram(rescale="auto", bound=0.5), foes), [0.5, 0.5, 0])


@pytest.mark.usefixtures("either_way")
def test_where_nothing_is_unique_lambda_is_1(stack_of: Any) -> None:
    same = stack_of([0, 0], [[1, 2], [1, 2]])
    assert scales_from(Energies(1e-5, "mean", 1.0).observe(same), None) == (1, 1)
    none = stack_of([0, 0], [[0, 0], [0, 0]])
    assert scales_from(Energies(1e-5, "mean", 1.0).observe(none), 0.5) == (1, 1)


@pytest.mark.parametrize("bound", [0.0, 0.5, None])
def test_the_recorded_scale_of_an_agent_with_nothing_unique_is_1_whatever_the_bound(
    tmp_path: Path, bound: float | None
) -> None:
    """A changes what b changes and nothing else; b has an element of its own, and its scale is bounded."""
    base = {"w": np.zeros(4, np.float32)}
    rows = {"a": [1, 2, 0, 0], "b": [1, 2, 3, 0]}
    for name, row in {**rows, "base": [0, 0, 0, 0]}.items():
        write_checkpoint(tmp_path / name, {"w": base["w"] + np.array(row, np.float32)})
    agents = {name: str(tmp_path / name) for name in rows}
    method = {"name": "ram_plus_auto", "bound": bound}
    record = merge({"base": str(tmp_path / "base"), "agents": agents, "method": method}, tmp_path / "out")
    assert record.survey.agents["a"].scale == 1.0
    assert record.survey.agents["b"].scale == (1.0 if bound is None else bound)


def test_nothing_shared_means_lambda_1_exactly(stack_of: Any, merged: Any) -> None:
    stack = stack_of([1, 1], [[1.1, 1], [1, 1.2]])
    np.testing.assert_array_equal(merged(Ram(rescale="auto"), stack), np.array([1.1, 1.2], "f4"))


def test_scope_tensor_takes_each_tensors_own_energies(stack_of: Any) -> None:
    left = stack_of([0, 0, 0], [[1, 0, 3], [0, 1, -3]], "left")
    right = stack_of([0, 0], [[1, 0], [0, 1]], "right")
    for scope, results in (("model", ([5.5, 5.5, 0], [5.5, 5.5])), ("tensor", ([10, 10, 0], [1, 1]))):
        method = Ram(rescale="auto", scope=scope)
        survey = survey_of(method, [left, right])
        for stack, expected in zip((left, right), results, strict=True):
            np.testing.assert_array_equal(method.merge(stack, survey), expected)


# equation 5 on the golden numbers


@pytest.mark.parametrize(
    ("shared", "power"), [("mean", 1.0), ("mean", 0.5), ("elect", 1.0), ("elect", 0.5), ("importance", 1.0)]
)
def test_every_agent_keeps_its_change_over_the_elements_it_changed(
    inputs: Path, tmp_path: Path, golden_recipe: Any, whole: Any, shared: str, power: float
) -> None:
    """<merged - base, tau> = <tau, tau> over the changed elements; 1 before the output cast, so in float32."""
    method = {"name": "ram_plus", "rescale": "auto", "shared": shared, "shared_power": power}
    record = merge(golden_recipe(inputs, method), tmp_path / "out")
    base, found = whole(inputs / "base").astype("f8"), whole(tmp_path / "out").astype("f8")
    for name, agent in record.survey.agents.items():
        tau = whole(inputs / name).astype("f8") - base
        changed = np.abs(tau) > 1e-5
        retention = ((found - base) * tau)[changed].sum() / (tau**2)[changed].sum()
        assert retention == pytest.approx(1, abs=2e-6), name
        assert (agent.scale or 0) > 1
    assert probe(golden_recipe(inputs, method)).survey == record.survey


def test_every_tensor_keeps_every_agents_change_with_scope_tensor(
    inputs: Path, tmp_path: Path, golden_recipe: Any
) -> None:
    """Of the agents that have unique elements in it, and whose lambda is not at its floor of 0."""
    method = {"name": "ram_plus", "rescale": "auto", "scope": "tensor"}
    record = merge(golden_recipe(inputs, method), tmp_path / "out")
    assert {agent.scale for agent in record.survey.agents.values()} == {None}
    base, found, checked = read_checkpoint(inputs / "base"), read_checkpoint(tmp_path / "out"), 0
    agents = [read_checkpoint(inputs / name) for name in ("code", "memory", "tool")]
    for tensor, array in base.items():
        start = as_float32(array).astype("f8")
        taus = np.array([as_float32(agent[tensor]).astype("f8") - start for agent in agents])
        changed = np.abs(taus) > 1e-5
        alone = changed.sum(axis=0) == 1
        for tau, mine in zip(taus, changed, strict=True):
            if (mine & alone).any():
                retention = ((found[tensor] - start) * tau)[mine].sum() / (tau**2)[mine].sum()
                assert retention == pytest.approx(1, abs=2e-5), tensor
                checked += 1
    assert checked > 40


# as a statistic


@pytest.mark.usefixtures("either_way")
def test_any_division_gives_the_same_bits() -> None:
    stack, statistic = random_stack(0, elements=5 * LEAF + 3), Energies(1e-5, "elect", 0.5)
    expected = statistic.observe(stack)
    for leaves in (1, 2, 3):
        survey = Survey()
        for piece in reversed(list(stack.pieces(leaves * LEAF))):
            survey.add(statistic, stack.block.tensor.name, statistic.observe(piece))
        assert survey.total(statistic) == expected


def test_settings_that_change_the_energies_are_part_of_the_question() -> None:
    questions = {Ram(rescale="auto", **s).ask(Survey())[0].key for s in SETTINGS}
    assert len(questions) == len(SETTINGS)
    assert Ram(rescale="auto", bound=2, clip=1, scope="tensor").ask(Survey()) == Ram(rescale="auto").ask(Survey())


SETTINGS: list[dict[str, Any]] = [
    {},
    {"threshold": 1e-4},
    {"shared": "sum"},
    {"shared": "elect"},
    {"shared_power": 0.5},
    {"shared": "elect", "shared_power": 0.5},
]


# retention


def test_any_retention_is_reached_and_told_where_rounding_undid_it(tiny: Sources, tmp_path: Path) -> None:
    for wanted in (0.8, 1.1):
        method = {"name": "ram_plus_auto", "retention": wanted}
        record = merge(tiny.recipe(method, output={"dtype": "float32"}), tmp_path / str(wanted))
        stored = record.learned["retention"]["stored"]
        assert all(value == pytest.approx(wanted, abs=1e-4) for value in stored.values())
        assert not any("output cast" in warning for warning in record.warnings)


def test_a_retention_of_one_is_the_plain_formula_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    unique, shared, kept = rng.random((3, 50))
    plain = tuple(float(max(1 + (e - p) / u, 0.0)) for u, e, p in zip(unique, shared, kept, strict=True))
    assert balanced_scales(unique, shared, kept, None, 1.0) == plain


def test_a_numeric_rescale_aims_at_no_retention() -> None:
    with pytest.raises(RecipeError, match="retention: what rescale 'auto' aims at"):
        resolve_method({"name": "ram_plus", "retention": 1.1})
