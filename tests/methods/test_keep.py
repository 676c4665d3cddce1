"""What the base must keep: the base as one more agent, whose task vector is 0 and whose inputs are measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.methods import arrays as arrays_module
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.interference import Held, Interference, solve
from agentmerge.methods.regmean import RegMean
from agentmerge.methods.vectors import Vectors
from agentmerge.methods.wudi import Wudi
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import Array, Block, Stack, TensorSpec
from agentmerge.testing.methods import assert_contract

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "model.layers.0.self_attn.q_proj.weight"
SHAPES = ((24, 40), (90, 70), (7, 9))


def vectors(shape: tuple[int, int], agents: int = 3) -> list[Array]:
    rng = np.random.default_rng(sum(shape))
    return [(1e-3 * rng.standard_normal(shape)).astype(np.float32) for _ in range(agents)]


def gram(side: int, tokens: int = 0) -> Array:
    """Of made-up inputs; of fewer tokens than inputs it is singular."""
    rng = np.random.default_rng(side)
    inputs = rng.standard_normal((tokens or 3 * side, side)) * rng.uniform(0.1, 3, side)
    return np.asarray(inputs.T @ inputs / len(inputs))


def stack_of(taus: Sequence[Array], keep: Array | None) -> Stack:
    base = np.zeros(taus[0].size, np.float32)
    block = Block(TensorSpec(NAME, "F32", taus[0].shape), 0, base.size)
    agents = tuple(np.asarray(tau, np.float32).reshape(-1) for tau in taus)
    return Stack(block, base, agents, tuple("abcdefgh"[: len(taus)]), keep=keep)


def merged(taus: Sequence[Array], measured: Array | None, **settings: Any) -> Array:
    method = Wudi(solver="exact", **settings)
    return method.merge(stack_of(taus, measured), Survey()).reshape(taus[0].shape)


def direct(taus: Sequence[Array], ridge: float, kept: Array) -> Array:
    """M (A + K + mu I) = B + mu S by LU, float64."""
    held = [tau.astype(np.float64) for tau in taus]
    grams = [tau.T @ tau / (tau**2).sum() for tau in held]
    pull = ridge * len(held) / held[0].shape[1]
    right = sum(tau @ one for tau, one in zip(held, grams, strict=True)) + pull * sum(held)
    return np.linalg.solve(sum(grams) + kept + pull * np.eye(held[0].shape[1]), right.T).T


@pytest.mark.parametrize("agents", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_is_the_direct_solution(shape: tuple[int, int], agents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taus, measured = vectors(shape, agents), gram(shape[1])
    kept = 0.7 * measured / np.trace(measured)
    expected = direct(taus, 0.01, kept)
    for panel, dtype in product((Arrays.panel, 2 * shape[1]), ("f4", "f8")):
        monkeypatch.setattr(Arrays, "panel", panel)
        monkeypatch.setattr(arrays_module, "BLOCK", min(panel, 256))
        found = merged(taus, measured.astype(dtype), keep=0.7)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_the_loss_of_adam_has_the_same_term() -> None:
    """The gradient by finite differences of loss(M) + trace(M K M^T)."""
    shape = (24, 40)
    taus, kept = [1000 * tau.astype(np.float64) for tau in vectors(shape)], gram(40)
    start, correction = np.sum(taus, axis=0), np.random.default_rng(1).standard_normal(shape)

    def loss(update: Array) -> float:
        own = sum(np.linalg.norm((update - tau) @ tau.T) ** 2 / (tau**2).sum() for tau in taus)
        return float(own + np.trace(update @ kept @ update.T))

    found = np.empty(shape)
    Interference.of(taus, "input", np, kept.copy()).gradient(correction, out=found)
    for at in np.ndindex(2, 2):
        step = np.zeros(shape)
        step[at] = 1e-3
        up, down = (loss(start + correction + sign * step) for sign in (1, -1))
        assert found[at] == pytest.approx((up - down) / 2e-3, rel=1e-7, abs=1e-9)


def test_adam_goes_the_same_way_as_exact() -> None:
    taus, measured = vectors((24, 40)), gram(40)
    plain = Wudi(steps=300).merge(stack_of(taus, measured), Survey())
    kept = Wudi(steps=300, keep=5.0).merge(stack_of(taus, measured), Survey())
    exact = merged(taus, measured, keep=5.0).reshape(-1)
    assert np.linalg.norm(kept - exact) < 0.5 * np.linalg.norm(plain - exact)


def test_the_base_is_one_more_agent_that_changed_nothing() -> None:
    """With the inputs that another agent's task vector stands for, and that one's target at 0."""
    taus = vectors((24, 40), 3)
    inputs = taus[2].astype(np.float64).T @ taus[2].astype(np.float64)
    held = [tau.astype(np.float64) for tau in taus]
    grams = [tau.T @ tau / (tau**2).sum() for tau in held]
    pull = 0.01 * 2 / 40
    right = held[0] @ grams[0] + held[1] @ grams[1] + pull * (held[0] + held[1])
    expected = np.linalg.solve(sum(grams) + pull * np.eye(40), right.T).T
    np.testing.assert_allclose(merged(taus[:2], inputs, keep=1.0), expected, rtol=0, atol=1e-9)


def test_what_is_kept_much_is_not_moved_and_what_the_base_is_never_given_stays() -> None:
    taus, measured = vectors((24, 40)), gram(40, tokens=8)
    plain, kept = merged(taus, None), merged(taus, measured, keep=1e9)
    values, sides = np.linalg.eigh(measured)
    given, never = sides[:, values > 1e-9], sides[:, values <= 1e-9]
    assert np.linalg.norm(kept @ given) < 1e-4 * np.linalg.norm(plain @ given)
    assert np.linalg.norm(kept @ never) > 0.5 * np.linalg.norm(plain @ never)


@pytest.mark.parametrize("solver", ["exact", "adam"])
def test_nothing_measured_nothing_kept(solver: str) -> None:
    taus = vectors((24, 40))
    expected = Wudi(solver=solver, steps=20).merge(stack_of(taus, None), Survey())
    for keep, setting in ((None, 1.0), (np.zeros((40, 40)), 1.0), (gram(40), None), (gram(40), 0.0)):
        found = Wudi(solver=solver, steps=20, keep=setting).merge(stack_of(taus, keep), Survey())
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_each_matrix_of_a_stack_has_its_own() -> None:
    taus = [np.stack(vectors((6, 10))[:2]), np.stack(vectors((6, 10))[1:])]
    keep = np.stack([gram(10), gram(10, tokens=4)])
    both = merged(taus, keep, keep=2.0)
    for i in range(2):
        alone = merged([tau[i] for tau in taus], keep[i], keep=2.0)
        np.testing.assert_allclose(both[i], alone, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_torch_gives_the_same_for_one_matrix_and_for_several() -> None:
    pytest.importorskip("torch")
    from agentmerge.methods.torch_arrays import TorchArrays

    taus, measured = [np.stack([tau, 2 * tau]) for tau in vectors((24, 40))], np.stack([gram(40), gram(40, tokens=9)])
    method = Wudi(solver="exact", keep=1.5)
    arrays = TorchArrays("cpu")
    stack = stack_of([tau.reshape(-1) for tau in taus], measured)
    stack = replace(stack, block=Block(TensorSpec(NAME, "F32", (2, 24, 40)), 0, stack.base.size))
    found = np.asarray(method.update(Vectors(stack, arrays, turned=False), arrays))
    expected = merged(taus, measured, keep=1.5)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_of_what_is_stored_turned_the_inputs_are_the_rows() -> None:
    taus, measured = vectors((24, 40)), gram(40)
    method = Wudi(solver="exact", keep=1.0, transposed=("*q_proj*",))
    found = method.merge(stack_of([tau.T.copy() for tau in taus], measured), Survey()).reshape(40, 24)
    np.testing.assert_allclose(found.T, merged(taus, measured, keep=1.0), rtol=0, atol=1e-9)
    assert method.work(TensorSpec(NAME, "F32", (40, 24)), 3).keep == (40, 40)


def test_the_input_form_is_taken_and_its_arithmetic_told() -> None:
    wide = TensorSpec(NAME, "F32", (64, 4096))
    plain, kept = Wudi(solver="exact").work(wide, 2), Wudi(solver="exact", keep=1.0).work(wide, 2)
    assert (plain.keep, kept.keep) == ((), (4096, 4096))
    assert kept.flop > plain.flop
    assert kept.bytes > plain.bytes + 8 * 4096**2
    held = solve(Held(vectors((8, 32), 2)), ridge=0.01, form="input", arrays=Arrays())
    np.testing.assert_allclose(merged(vectors((8, 32), 2), None), held, rtol=0, atol=1e-8)


def test_regmean_has_the_base_as_an_agent_of_that_weight() -> None:
    taus, grams = vectors((7, 9)), tuple(gram(9, tokens=20 + i) for i in range(4))
    stack = replace(stack_of(taus, grams[3]), grams=grams[:3])
    found = RegMean(keep=2.0).update(Vectors(stack, Arrays(), turned=False), Arrays())
    four = stack_of([*taus, np.zeros((7, 9))], None)
    four = replace(four, grams=grams, weights=(1.0, 1.0, 1.0, 2.0))
    expected = RegMean().update(Vectors(four, Arrays(), turned=False), Arrays())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [Wudi(solver="exact", keep=1.0), Wudi(retention=1.0, solver="exact", keep=0.5)])
def test_the_contract(method: Wudi) -> None:
    assert_contract(method)
