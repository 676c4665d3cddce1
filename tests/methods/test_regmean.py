"""RegMean is the solution of its own regression, by a dense solver and by the outputs themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentmerge.errors import DataError, RecipeError
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.base import Context
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.regmean import RegMean
from agentmerge.methods.torch_arrays import TorchArrays
from agentmerge.methods.vectors import Vectors
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import Array, Block, Stack, TensorSpec
from agentmerge.testing import assert_same_bits

NAME = "model.layers.0.mlp.up_proj.weight"


def made_up(shape: tuple[int, int] = (7, 9), agents: int = 3, tokens: int = 40) -> tuple[Stack, Array]:
    """One matrix in float32, its agents, and the inputs [agents, tokens, in] of whom it holds the Gram matrices."""
    rng = np.random.default_rng(sum(shape) + agents)
    base = rng.standard_normal(shape).astype(np.float32).reshape(-1)
    rows = tuple(base + (0.01 * rng.standard_normal(base.size)).astype(np.float32) for _ in range(agents))
    inputs = rng.standard_normal((agents, tokens, shape[1])) * rng.uniform(0.1, 3, (agents, 1, shape[1]))
    block = Block(TensorSpec(NAME, "F32", shape), 0, base.size)
    grams = tuple(x.T @ x / tokens for x in inputs)
    return Stack(block, base, rows, tuple("abcdefgh"[:agents]), grams=grams), inputs


def update_of(stack: Stack, arrays: Arrays | None = None, **settings: Any) -> Array:
    found = RegMean(**settings).update(Vectors(stack, arrays or Arrays(), turned=False), arrays or Arrays())
    return np.asarray(found)


def dense(stack: Stack, scaling: float, weights: Any = (1, 1, 1)) -> Array:
    """(sum of w W G~) (sum of w G~)^-1 - W_0 by an inverse, from the agents' own weights; float64."""
    shape = stack.block.tensor.shape
    scaled = [
        w * (scaling * g + (1 - scaling) * np.diag(np.diag(g))) for w, g in zip(weights, stack.grams, strict=True)
    ]
    own = [np.asarray(agent, np.float64).reshape(shape) for agent in stack.agents]
    merged = sum(w @ g for w, g in zip(own, scaled, strict=True)) @ np.linalg.inv(sum(scaled))
    return np.asarray(merged - stack.base.astype(np.float64).reshape(shape))


@pytest.mark.parametrize("scaling", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(7, 9), (30, 4), (3, 25)])
def test_it_is_the_dense_solution(shape: tuple[int, int], scaling: float) -> None:
    stack, _ = made_up(shape)
    expected = dense(stack, scaling)
    for ridge in (0.0, 1e-9):
        found = update_of(stack, scaling=scaling, ridge=ridge)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-7 * np.abs(expected).max())


@pytest.mark.slow
def test_torch_gives_the_same() -> None:
    pytest.importorskip("torch")
    stack, _ = made_up()
    np.testing.assert_allclose(update_of(stack, TorchArrays("cpu")), update_of(stack), rtol=0, atol=1e-12)


def test_at_scaling_1_no_matrix_has_outputs_nearer_to_the_agents() -> None:
    """The paper's own objective, from the inputs themselves."""
    stack, inputs = made_up()
    shape, taus = stack.block.tensor.shape, stack.task_vectors().astype(np.float64)

    def apart(update: Array) -> float:
        pairs = zip(inputs, taus, strict=True)
        return sum(float(((x @ (update - tau.reshape(shape)).T) ** 2).sum()) for x, tau in pairs)

    found, rng = update_of(stack, scaling=1.0), np.random.default_rng(0)
    for size in (1e-6, 1e-4, 1e-2):
        assert all(apart(found + size * rng.standard_normal(shape)) > apart(found) for _ in range(20))
    assert apart(found) < apart(taus.mean(axis=0).reshape(shape))


def test_at_scaling_0_every_input_is_a_weighted_mean() -> None:
    stack, _ = made_up()
    shares = np.array([np.diag(gram) for gram in stack.grams])
    shares /= shares.sum(axis=0)
    taus = stack.task_vectors().reshape(3, *stack.block.tensor.shape)
    expected = (taus * shares[:, None]).sum(axis=0)
    np.testing.assert_allclose(update_of(stack, scaling=0.0), expected, rtol=0, atol=1e-9)


def test_a_weight_multiplies_the_gram_matrix_and_only_ratios_count() -> None:
    stack, _ = made_up()
    found = update_of(replace(stack, weights=(0.5, 1.0, 2.0)))
    np.testing.assert_allclose(found, dense(stack, 0.9, (0.5, 1, 2)), rtol=0, atol=1e-8)
    np.testing.assert_allclose(update_of(replace(stack, weights=(1.0, 2.0, 4.0))), found, rtol=0, atol=1e-12)
    none = replace(stack, weights=(0.0, 1.0, 1.0))
    two = replace(stack, agents=stack.agents[1:], grams=stack.grams[1:], names=stack.names[1:])
    np.testing.assert_allclose(update_of(none), update_of(two), rtol=0, atol=1e-12)


def test_equal_inputs_give_the_mean_and_one_agent_is_kept_whole() -> None:
    stack, _ = made_up()
    same = replace(stack, grams=(stack.grams[0],) * 3)
    mean = stack.task_vectors().mean(axis=0, dtype=np.float64).reshape(7, 9)
    np.testing.assert_allclose(update_of(same), mean, rtol=0, atol=1e-9)
    alone = replace(stack, agents=stack.agents[:1], grams=stack.grams[:1], names=("a",))
    np.testing.assert_allclose(update_of(alone), stack.task_vectors()[0].reshape(7, 9), rtol=0, atol=1e-9)


def test_an_agent_equal_to_the_base_counts_with_its_inputs_one_that_is_absent_does_not() -> None:
    stack, _ = made_up()
    equal = replace(stack, agents=(stack.base, *stack.agents[1:]))
    np.testing.assert_allclose(update_of(equal), dense(equal, 0.9), rtol=0, atol=1e-9)
    absent = replace(equal, absent=frozenset("a"), grams=(None, *stack.grams[1:]))
    two = replace(stack, agents=stack.agents[1:], grams=stack.grams[1:], names=stack.names[1:])
    np.testing.assert_allclose(update_of(absent), update_of(two), rtol=0, atol=1e-12)


def test_a_row_that_nobody_changed_keeps_the_bases_bits() -> None:
    stack, _ = made_up()
    base = np.where(np.arange(63) < 9, np.float32(-0.0), stack.base)
    agents = tuple(np.where(np.arange(63) < 9, base, agent) for agent in stack.agents)
    kept = replace(stack, base=base, agents=agents)
    assert_same_bits(RegMean().merge(kept, Survey())[:9], base[:9], "the first row")


def test_an_input_that_is_0_on_all_data_gets_the_mean() -> None:
    stack, _ = made_up()
    grams = []
    for gram in stack.grams:
        dead = gram.copy()
        dead[2], dead[:, 2] = 0, 0
        grams.append(dead)
    found = update_of(replace(stack, grams=tuple(grams)), scaling=1.0)
    mean = stack.task_vectors().mean(axis=0, dtype=np.float64).reshape(7, 9)
    np.testing.assert_allclose(found[:, 2], mean[:, 2], rtol=0, atol=1e-9)
    nothing = replace(stack, grams=tuple(0 * gram for gram in stack.grams))
    np.testing.assert_allclose(update_of(nothing), mean, rtol=0, atol=1e-9)


def test_what_has_no_inverse_is_told() -> None:
    stack, _ = made_up()
    nothing = replace(stack, grams=tuple(0 * gram for gram in stack.grams))
    with pytest.raises(DataError, match=rf"{NAME}: the agents' Gram matrices together have no inverse"):
        update_of(nothing, ridge=0.0)


def test_few_tokens_at_scaling_1_give_finite_numbers() -> None:
    stack, _ = made_up(tokens=2)
    found = update_of(stack, scaling=1.0)
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 1


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": -0.5}, {"a": 0.0, "b": 0.0}])
def test_weights_that_cancel_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match="regmean multiplies Gram matrices by them"):
        RegMean().bind(Context(0, weights))


def test_a_part_of_a_layer_and_a_layer_without_grams_are_refused() -> None:
    stack, _ = made_up((64, 64))
    with pytest.raises(RecipeError, match="must see"):
        RegMean().merge(next(stack.pieces(2048)), Survey())
    with pytest.raises(RecipeError, match="no Gram matrices, though the method needs them"):
        RegMean().merge(replace(stack, grams=()), Survey())


def test_a_layer_stored_in_by_out_is_turned() -> None:
    stack, _ = made_up((8, 8))
    turned = replace(stack, base=flipped(stack.base), agents=tuple(map(flipped, stack.agents)))
    method: Any = resolve_method({"name": "regmean", "transposed": NAME})
    found = flipped(method.merge(turned, Survey()))
    np.testing.assert_allclose(found, RegMean().merge(stack, Survey()), rtol=0, atol=1e-6)


def flipped(array: Array) -> Array:
    return array.reshape(8, 8).T.reshape(-1).copy()
