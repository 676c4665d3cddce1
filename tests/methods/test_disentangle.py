"""Disentangle takes what its formula says: its own closed form, and no point nearby has a smaller loss."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.methods.disentangle import Disentangle, disentangled
from agentmerge.methods.redundancy import cosines, left, loss, redundancy
from agentmerge.methods.registry import resolve_method
from agentmerge.survey.full.question import Energy
from agentmerge.survey.overlap import OverlapCounts
from agentmerge.survey.products import Products
from agentmerge.survey.products import gram as gram_matrix
from agentmerge.survey.statistic import Survey
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    assert_statistic_contract,
    random_stack,
    read_checkpoint,
    survey_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.tensors import Array, Stack


COUNTS = OverlapCounts(600, np.array([[0, 0, 600]] * 3), np.full(3, 600))


def even_products(agents: int, cosine: float) -> Array:
    """Of task vectors of length 2 with one cosine for every pair."""
    return 4 * np.where(np.eye(agents, dtype=bool), 1.0, cosine)


def closed_form(agents: int, cosine: float) -> float:
    """What every agent's coefficient is where norms and cosines are equal."""
    m = (1 + (agents - 1) * cosine) / agents
    return (1 - np.sqrt(1 - cosine / m)) / agents


def made_up(agents: int, seed: int = 0) -> Array:
    """Products of task vectors of all lengths that have something in common."""
    rng = np.random.default_rng(seed)
    tau = rng.standard_normal((agents, 200)) + 0.4 * rng.standard_normal(200)
    tau *= rng.uniform(0.2, 3, agents)[:, None]
    return tau @ tau.T


def simplex(at: Callable[[Array], float], start: Array, rounds: int = 400) -> Array:
    """Nelder and Mead: no gradient, no smoothing."""
    points = [start, *(start + 0.05 * step for step in np.eye(len(start)))]
    for _ in range(rounds):
        points.sort(key=at)
        middle, worst = np.mean(points[:-1], axis=0), points[-1]
        mirrored = 2 * middle - worst
        far, near = 3 * middle - 2 * worst, (middle + worst) / 2
        if at(mirrored) < at(points[0]):
            points[-1] = min(far, mirrored, key=at)
        elif at(mirrored) < at(points[-2]):
            points[-1] = mirrored
        elif at(near) < at(worst):
            points[-1] = near
        else:
            points = [(point + points[0]) / 2 for point in points]
    return min(points, key=at)


# the coefficients


@pytest.mark.parametrize(("agents", "cosine"), list(product((2, 3, 7), (0.0, 0.05, 0.3, 0.7, -0.04))))
@pytest.mark.parametrize("same", [False, True])
def test_with_equal_norms_and_cosines_the_closed_form_comes_out(agents: int, cosine: float, same: bool) -> None:
    gram = even_products(agents, cosine)
    found = redundancy(gram, 0.1, same=same)
    np.testing.assert_allclose(found, closed_form(agents, cosine), rtol=0, atol=1e-9)
    np.testing.assert_allclose(cosines(left(gram, found)), np.eye(agents), rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("agents", "alpha"), list(product((2, 3, 4), (0.02, 0.5, 1.0))))
def test_a_search_without_gradients_finds_nothing_better_around_it(agents: int, alpha: float) -> None:
    gram = made_up(agents)
    gram /= np.diagonal(gram).mean()
    found = redundancy(gram, alpha)

    def at(a: Array) -> float:
        return loss(gram, a, alpha)

    start = simplex(lambda c: at(np.full(agents, c[0] / agents)), np.zeros(1))
    searched = simplex(at, np.full(agents, start[0] / agents))
    assert at(found) <= at(searched) + 1e-7
    rng = np.random.default_rng(1)
    for size in (1e-5, 1e-3, 1e-1):
        assert all(at(found + size * rng.standard_normal(agents)) > at(found) - 1e-9 for _ in range(100))


def test_alpha_is_nearly_a_switch_at_2_by_the_root_of_the_number_of_agents() -> None:
    gram = even_products(3, 0.1)
    assert redundancy(gram, 0.9 * 2 / np.sqrt(3)).min() > 0.04
    np.testing.assert_array_equal(redundancy(gram, 1.1 * 2 / np.sqrt(3)), 0)


def test_the_loss_is_that_of_vectors() -> None:
    """From the vectors themselves, not from their products."""
    rng = np.random.default_rng(3)
    tau, a = rng.standard_normal((4, 50)), np.array([0.1, -0.2, 0.3, 0.05])
    rest = tau - a @ tau
    size = np.linalg.norm(rest, axis=1)
    cosine = np.abs(rest @ rest.T) / np.outer(size, size)
    expected = (cosine.sum() - 4) / 12 + 0.7 * np.linalg.norm(a @ tau) / np.linalg.norm(tau, axis=1).mean()
    assert loss(tau @ tau.T, a, 0.7) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(left(tau @ tau.T, a), rest @ rest.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "products",
    [np.zeros((3, 3)), np.diag([1.0, 0, 0]), np.full((2, 2), np.nan), np.full((3, 3), np.inf), np.ones((1, 1))],
    ids=["nobody", "one", "nan", "inf", "alone"],
)
def test_where_there_is_no_pair_nothing_is_taken(products: Array) -> None:
    np.testing.assert_array_equal(redundancy(products, 0.1), 0)


def test_an_agent_that_changed_nothing_has_no_say() -> None:
    gram, alone = np.zeros((4, 4)), made_up(3)
    gram[np.ix_((0, 1, 3), (0, 1, 3))] = alone
    found = redundancy(gram, 0.1)
    np.testing.assert_array_equal(found, np.insert(redundancy(alone, 0.1), 2, 0.0))


def test_identical_agents_and_opposite_ones_give_finite_numbers() -> None:
    for gram in (np.ones((3, 3)), np.array([[1.0, -1], [-1, 1]]), np.diag([1e-30, 1e30])):
        assert np.isfinite(redundancy(gram, 0.1)).all()


# the products


def test_the_products_keep_the_contract_of_statistics() -> None:
    assert_statistic_contract(Products(), agents=(1, 3))


def test_the_products_are_those_of_the_task_vectors() -> None:
    stack = random_stack(2, elements=5000, agents=4, dtypes=("F32",))
    tau = stack.task_vectors().astype(np.float64)
    np.testing.assert_allclose(gram_matrix(Products().observe(stack)), tau @ tau.T, rtol=1e-12)


# the method


def shared_stack(weights: tuple[float, ...] = ()) -> Stack:
    """Three agents that have half of their change in common."""
    rng, plain = np.random.default_rng(5), random_stack(0, elements=600, dtypes=("F32",), weights=weights)
    common = 0.01 * rng.standard_normal(600)
    base = rng.standard_normal(600).astype(np.float32)
    agents = tuple((base + common + 0.01 * rng.standard_normal(600)).astype(np.float32) for _ in range(3))
    return replace(plain, base=base, agents=agents)


def test_around_task_arithmetic_it_is_a_weighting(merged: Any) -> None:
    stack = shared_stack(weights=(0.5, 1.0, 2.0))
    tau = stack.task_vectors().astype(np.float64)
    a = redundancy(tau @ tau.T, 0.1)
    weight = np.array([0.5, 1.0, 2.0])
    expected = stack.base + 0.5 * ((weight - a * weight.sum()) @ tau)
    method = resolve_method({"name": "disentangle", "then": {"name": "task_arithmetic", "scale": 0.5}})
    np.testing.assert_allclose(merged(method, stack), expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize("settings", [{}, {"coefficients": "one"}, {"scope": "tensor"}], ids=str)
@pytest.mark.parametrize("then", ["ram_plus", "ties"])
def test_the_inner_method_sees_what_is_left(merged: Any, settings: dict[str, Any], then: str) -> None:
    stack = shared_stack()
    tau = stack.task_vectors()
    wide = tau.astype(np.float64)
    a = redundancy(wide @ wide.T, 0.1, same=settings.get("coefficients") == "one")
    rest = replace(stack, tau=disentangled(tau, a, [True] * 3))
    if not settings.get("coefficients"):  # one coefficient can't make every angle a right one
        assert np.abs(cosines(gram_matrix(Products().observe(rest))) - np.eye(3)).max() < 1e-5
    inner = resolve_method(then)
    expected = inner.merge(rest, survey_of(inner, [rest]))
    found = merged(resolve_method({"name": "disentangle", "then": then, **settings}), stack)
    assert_same_bits(found, expected, "merged")


def test_orthogonal_agents_are_left_to_the_inner_method_bit_for_bit(merged: Any) -> None:
    plain = shared_stack()
    base = plain.base
    agents = tuple(np.where(np.arange(600) // 200 == t, base + np.float32(0.01), base) for t in range(3))
    stack = replace(plain, agents=agents)
    for then in ("ram_plus", "ties"):
        assert_same_bits(merged(Disentangle(then=then), stack), merged(resolve_method(then), stack), then)


def test_who_is_absent_keeps_nothing_and_gets_nothing(merged: Any) -> None:
    """Its task vector is 0 there, and stays so although the whole checkpoint has a redundant part."""
    stack = shared_stack()
    method = Disentangle(then="task_arithmetic")
    survey = survey_of(method, [stack])
    gone = replace(stack, agents=(stack.base, *stack.agents[1:]), absent=frozenset({stack.names[0]}))
    rest = method.taken_from(gone, survey).task_vectors()
    assert not rest[0].any()
    assert rest[1].any()


def test_the_record_tells_coefficients_and_cosines(tiny: Sources, tmp_path: Path) -> None:
    record = merge(tiny.recipe({"name": "disentangle", "then": "ram"}), tmp_path / "out")
    told = record.learned["disentangled"]
    assert set(told["coefficients"]) == {"code", "memory", "tool"}
    assert told["mean_cosine"]["after"] < 1e-6 < told["mean_cosine"]["before"]
    assert {agent.scale for agent in record.survey.agents.values()} == {None}
    changed = read_checkpoint(tmp_path / "out")
    assert any((changed[name] != array).any() for name, array in read_checkpoint(tiny.base).items())


def test_what_it_says_of_unique_elements_is_what_a_merge_does(merged: Any) -> None:
    """Of agents of which everything counts as changed: the products of the changes are those of the task vectors."""
    stack = shared_stack()
    tau = stack.task_vectors().astype(np.float64)
    gram = tau @ tau.T
    energy = Energy(np.zeros(3), np.diagonal(gram), np.zeros(3), gram[np.triu_indices(3, 1)], np.ones(3), np.ones(3))
    method = Disentangle(then="task_arithmetic")
    found = method.dilution(stack.names, COUNTS, energy)
    np.testing.assert_allclose(found.multiplier, 1 / 3 - redundancy(gram, 0.1), rtol=1e-12)
    update = merged(method, stack).astype(np.float64) - stack.base
    np.testing.assert_allclose(found.retention, (tau @ update) / np.diagonal(gram), rtol=1e-3)
    assert np.isnan(Disentangle(then="ties").dilution(stack.names, COUNTS, energy).multiplier).all()


def test_before_anything_is_folded_it_asks_for_products_alone() -> None:
    assert Disentangle(then="ties").ask(Survey()) == (Products(),)


def test_the_contract_is_kept_tensor_by_tensor() -> None:
    method = {"name": "disentangle", "then": "ties", "scope": "tensor", "coefficients": "one"}
    assert_contract(resolve_method(method), weights=(0.5, 1.0, 1.7))
