"""A merge put onto another checkpoint: the compiled loop equals the definition, and the definition the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.engine.onto import PIECE, moved, put_onto
from agentmerge.methods.ram import Ram
from agentmerge.survey.retention import RegionRetention, StoredRetention
from agentmerge.survey.rounding import Rounding
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import DTYPES, Array, Cast, Stack, as_float32
from agentmerge.testing import assert_same_bits, random_stack
from agentmerge.testing.stacks import hostile_stacks

CASTS = [Cast(dtype, rounding, 3) for dtype in ("BF16", "F16", "F32") for rounding in ("nearest", "stochastic")]  # type: ignore[arg-type]


def other(stack: Stack, dtype: str, seed: int = 7) -> Array:
    """Another checkpoint's block, in part the base's own numbers, with zeros of both signs."""
    random = np.random.default_rng(seed)
    wide = np.where(random.random(stack.base.size) < 0.3, as_float32(stack.base), 0)
    wide = wide + np.where(random.random(stack.base.size) < 0.7, random.normal(0, 0.02, stack.base.size), 0)
    with np.errstate(all="ignore"):
        return np.where(random.random(stack.base.size) < 0.1, -0.0, wide).astype(DTYPES[dtype])


def put(stack: Stack, onto: Array, cast: Cast, *asked: Any) -> tuple[Array, Any]:
    method = Ram(name="ram_plus", rescale=0.0, threshold=1e-4)
    with np.errstate(all="ignore"):
        merged = method.merge(stack, Survey())
    out = np.full(stack.base.size, 7, DTYPES[cast.dtype])
    return out, put_onto(stack, merged, onto, cast, out, (Rounding(1e-4), *asked))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_the_loop_adds_casts_and_counts_as_the_definition_does(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    compared = 0
    stacks = [*hostile_stacks((1, 3, 64)), random_stack(1, elements=PIECE + 2049)]
    for number, stack in enumerate(stacks):
        onto, casts = other(stack, dtype), CASTS if number % 7 == 0 else CASTS[number % 6 : number % 6 + 1]
        for cast in casts:
            found = put(stack, onto, cast)
            with monkeypatch.context() as switched:
                switched.setattr(kernels, "choose", lambda *_: None)
                expected = put(stack, onto, cast)
            assert_same_bits(found[0], expected[0], f"{number} {cast}")
            assert found[1] == expected[1]
            compared += kernels.choose(stack, cast.dtype) is not None
    assert compared > 20


def test_what_is_counted_is_what_the_agents_changed_of_the_base_and_lost_on_the_other_checkpoint() -> None:
    stack = random_stack(3, agents=2)
    onto = (other(stack, "F32") * 100).astype(DTYPES["BF16"])
    there = moved(stack, onto)
    assert_same_bits(there.task_vectors(), stack.task_vectors(), "task vectors")
    stored, answers = put(stack, onto, Cast("BF16"), StoredRetention(), RegionRetention(1e-4))
    counts, tau = answers[Rounding(1e-4)], stack.task_vectors()
    changed = np.abs(tau) > np.float32(1e-4)
    assert counts.changed.tolist() == changed.sum(axis=1).tolist()
    number = changed.sum(axis=0)
    update = np.where(changed, tau, 0).sum(axis=0, dtype=np.float32) / np.maximum(number, 1).astype(np.float32)
    lost = (as_float32(onto) + update != as_float32(onto)) & (stored == onto)
    assert counts.lost.tolist() == (changed & lost).sum(axis=1).tolist()
    assert counts.lost.all(), "steps of larger numbers must be too coarse for some changes"
    kept = (as_float32(stored) - as_float32(onto)).astype(np.float64) * tau
    sums = answers[StoredRetention()].total()
    np.testing.assert_allclose(sums[:2], kept.sum(axis=1), rtol=1e-6)
    assert RegionRetention(1e-4) in answers


def test_an_element_that_no_agent_changed_keeps_the_own_bits_of_the_other_checkpoint_in_any_dtype() -> None:
    for dtype in ("F64", "F32", "F16", "BF16"):
        stack = random_stack(5, agents=2)
        onto = np.clip(other(stack, "F64"), -6e4, 6e4).astype(DTYPES[dtype])
        stored, _ = put(stack, onto, Cast(dtype))
        unchanged = (np.abs(stack.task_vectors()) <= np.float32(1e-4)).all(axis=0)
        assert_same_bits(stored[unchanged], onto[unchanged], dtype)
        assert 0 < unchanged.sum() < unchanged.size
