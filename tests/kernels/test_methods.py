"""Every method's kernels, folds and map, equal its numpy definitions bit for bit, however methods are wrapped."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import kernels
from agentmerge.engine.blocks import merge_stack
from agentmerge.errors import DataError
from agentmerge.methods.base import Context, MergeMethod, before_merging, while_merging
from agentmerge.methods.kernel import CACHED, in_parts, merge_by_kernels
from agentmerge.methods.registry import resolve_method
from agentmerge.survey.observe import observe
from agentmerge.survey.rounding import Rounding, observe_rounding
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.survey.sums import TreeSums, TreeSumsOf
from agentmerge.tensors import DTYPES, Block, Cast, Stack, TensorSpec
from agentmerge.testing import assert_same_bits, random_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.tensors import Array

FLOATS = ("BF16", "F16", "F32")
SIZES = (0, 1, 63, 2047, 2049, 4097)
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "ram"},
    {"name": "ram_plus", "threshold": 1e-3, "scope": "tensor"},
    {"name": "ram_plus", "shared": "sum"},
    {"name": "ram", "shared_power": 0.5},
    {"name": "ram_plus", "shared": "elect"},
    {"name": "ram_plus_soft", "shared": "elect", "shared_power": 0.7},
    {"name": "ram_plus", "shared": "importance"},
    {"name": "ram_plus", "rescale": "auto", "bound": 3},
    {"name": "ram_plus", "rescale": "auto", "shared": "importance"},
    {"name": "ram_plus", "rescale": "auto", "shared": "elect", "shared_power": 0.3},
    {"name": "task_arithmetic"},
    {"name": "task_arithmetic", "scale": -0.7},
    {"name": "linear"},
    {"name": "linear", "normalize": False},
    {"name": "ties"},
    {"name": "ties", "density": 0.9, "scope": "tensor", "scale": 1.3},
    {"name": "ties", "density": 0.5, "zero_sign": "zero"},
    {"name": "ties", "density": 1},
    {"name": "fisher"},
    {"name": "fisher", "normalize": True, "floor": 0, "scale": 0.5},
    {"name": "region", "keep": "unique"},
    {"name": "region", "keep": "shared", "factor": 0.5},
    {"name": "region", "keep": "changed"},
)
WRAPPERS: tuple[tuple[dict[str, Any], ...], ...] = (
    (),
    ({"name": "dare"},),
    ({"name": "dare", "density": 1},),
    ({"name": "dare", "density": 0.1, "seed": 5},),
    ({"name": "dare", "density": 0.99999999999},),
    ({"name": "calibrate", "retention": 1.1},),
    ({"name": "dare", "density": 0.7}, {"name": "dare", "seed": 9}),
    ({"name": "calibrate"}, {"name": "dare", "density": 0.3}),
    ({"name": "dare", "density": 0.3}, {"name": "calibrate"}),
)


@dataclass(frozen=True)
class Case:
    """A method and a stack that it merges."""

    method: MergeMethod
    stack: Stack


class Plain(MergeMethod):
    """A method without a kernel."""

    name: Literal["plain"] = "plain"

    def merge(self, stack: Stack, survey: Survey) -> Array:
        merged: Array = stack.task_vectors().sum(axis=0) + stack.values(0)
        return merged


@contextmanager
def definitions() -> Iterator[None]:
    """With every kernel switched off."""
    with patch.object(kernels, "choose", lambda *_: None), np.errstate(all="ignore"):
        yield


def wrapped(wrappers: tuple[dict[str, Any], ...], inner: dict[str, Any], agent: str) -> MergeMethod:
    config = {**inner, "agent": agent} if inner["name"] == "region" else inner
    for wrapper in reversed(wrappers):
        config = {**wrapper, "then": config}
    return resolve_method(config).bind(Context(1, {agent: 1.0}))


@st.composite
def cases(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> Case:
    agents = draw(st.integers(1, 9))
    mixed = st.lists(st.sampled_from(FLOATS), min_size=1, max_size=agents + 1)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = draw(st.sampled_from([(), tuple(random.standard_normal(agents)), (0.5,) * agents, (0.0,) * agents]))
    stack = random_stack(
        draw(st.integers(0, 2**32)),
        elements=draw(st.sampled_from(sizes)),
        agents=agents,
        dtypes=draw(mixed),
        weights=weights,
        huge=draw(st.booleans()),
        non_finite=draw(st.booleans()),
        importance=True,
    )
    importance = tuple(values.astype(DTYPES[draw(st.sampled_from(FLOATS))]) for values in stack.extra["importance"])
    start = 2048 * draw(st.sampled_from([0, 1, 3, 2**20 + 1]))
    tensor = replace(stack.block.tensor, shape=(start + stack.base.size,))
    stack = replace(stack, block=Block(tensor, start, start + stack.base.size), extra={"importance": importance})
    method = wrapped(
        draw(st.sampled_from(WRAPPERS)), draw(st.sampled_from(METHODS)), draw(st.sampled_from(stack.names))
    )
    return Case(method, stack)


def plain(answer: Any) -> Any:
    """An answer of any statistic as something that == compares bit for bit, NaN by position."""
    if isinstance(answer, TreeSums):
        return {name: {place: tuple(map(repr, values)) for place, values in found.items()} for name, found in
                answer.nodes.items()}  # fmt: skip
    if isinstance(answer, tuple):
        return tuple(plain(part) for part in answer)
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def assert_same_answer(statistic: Statistic[Any], stack: Stack, expected: Any) -> None:
    with np.errstate(all="ignore"):
        backend = kernels.choose(stack)
        assert backend is not None
        found = statistic.kernel(stack, backend)
    assert found is not None or stack.base.size == 0
    assert plain(observe([statistic], stack)[statistic]) == plain(expected)


def folded(case: Case) -> Survey:
    """What the method asks for, every answer by its kernel and by its definition."""
    survey, tensor = Survey(), case.stack.block.tensor.name
    while asked := before_merging(case.method.ask(survey)):
        found = Survey()
        for statistic in asked:
            with definitions():
                expected = observe([statistic], case.stack)[statistic]
            assert_same_answer(statistic, case.stack, expected)
            found.add(statistic, tensor, expected)
        survey.update(found)
    return survey


def defined(case: Case, survey: Survey, cast: Cast) -> tuple[Array, Any]:
    stack, method = case.stack, case.method
    with definitions():
        merged = method.merge(stack, survey)
        stored = cast.apply(merged, stack.block.tensor.name, stack.block.start)
        return stored, observe_rounding(stack, merged, stored, cast, method.overlap.threshold)


def assert_kernels_fit(case: Case, cast: Cast) -> None:
    stack = case.stack
    out = np.full(stack.base.size, 7, DTYPES[cast.dtype])
    try:
        survey = folded(case)
        with np.errstate(all="ignore"):
            counts = merge_by_kernels(case.method, stack, survey, cast, out)
    except DataError:  # calibrate, where the merge moves away from what the agents learned
        return
    expected, expected_counts = defined(case, survey, cast)
    assert_same_bits(out, expected, case.method.name)
    assert counts == expected_counts
    for question in while_merging(case.method.ask(survey)):
        with definitions():
            kept = question.observe(stack, expected.astype(np.float32), expected, cast)
        backend = kernels.choose(stack, cast.dtype)
        assert backend is not None
        with np.errstate(all="ignore"):
            assert plain(question.kernel(stack, out, backend)) == plain(kept)


@pytest.mark.parametrize("agents", [1, 17, 64])
@pytest.mark.parametrize("config", METHODS, ids=str)
def test_up_to_64_agents_are_merged(config: dict[str, Any], agents: int) -> None:
    stack = random_stack(agents, elements=257, agents=agents, importance=True)
    for wrappers in ((), ({"name": "calibrate"}, {"name": "dare"})):
        assert_kernels_fit(Case(wrapped(wrappers, config, stack.names[0]), stack), Cast("BF16"))


@settings(max_examples=300, deadline=None)
@given(cases(), st.sampled_from(FLOATS), st.sampled_from(["nearest", "stochastic"]))
def test_every_kernel_equals_its_definition(case: Case, dtype: str, rounding: Any) -> None:
    assert_kernels_fit(case, Cast(dtype, rounding, seed=3))


def test_a_method_that_must_see_a_tensor_whole_does_so_inside_of_wrappers() -> None:
    """Its retention is folded over whole tensors, with kernels and without, dropped or not."""
    random, n = np.random.default_rng(0), 400 * 400
    base = (random.standard_normal(n) * 0.02).astype(DTYPES["BF16"])
    agents = tuple((base + random.standard_normal(n) * 1e-3).astype(DTYPES["BF16"]) for _ in range(2))
    spec = TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (400, 400))
    stack = Stack(Block(spec, 0, n), base, agents, ("a", "b"))
    for wrappers in (({"name": "calibrate"},), ({"name": "dare", "seed": 1}, {"name": "calibrate"})):
        method = wrapped(wrappers, {"name": "wudi", "steps": 2}, "a")
        survey = before(method, stack)
        (question,) = before_merging(method.ask(survey))
        with np.errstate(all="ignore"):
            expected = plain(question.observe(stack))
        assert plain(observe([question], stack)[question]) == expected
        with definitions():
            assert plain(observe([question], stack)[question]) == expected


def before(method: MergeMethod, stack: Stack) -> Survey:
    """All answers but the last."""
    survey = Survey()
    while not isinstance((asked := before_merging(method.ask(survey)))[0].answers, TreeSumsOf):
        for statistic in asked:
            survey.add(statistic, stack.block.tensor.name, statistic.observe(stack))
    return survey


def test_kernels_of_parts_come_one_after_another_and_a_missing_one_is_an_error() -> None:
    stack, seen = random_stack(0, elements=2 * CACHED + 5), []

    def given(part: Stack) -> Any:
        seen.append(part.block.start)
        return (part,)

    made = in_parts(stack, given)
    assert made is not None
    assert len([*made]) == 3
    assert seen == [0, CACHED, 2 * CACHED]
    seen.clear()
    next(iter(in_parts(stack, given) or ()))
    assert seen == [0]
    assert in_parts(stack, lambda part: None) is None
    with pytest.raises(TypeError):
        list(in_parts(stack, lambda part: None if part.block.start else (part,)) or ())  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@given(cases())
@settings(max_examples=25, deadline=None)
def test_what_has_no_kernel_is_cast_and_counted_by_one(dtype: str, rounding: Any, case: Case) -> None:
    cast, stack, survey = Cast(dtype, rounding, seed=3), case.stack, Survey()
    with definitions():
        merged = stack.task_vectors().sum(axis=0) + stack.values(0)
        expected = cast.apply(merged, stack.block.tensor.name, stack.block.start)
        counts = observe_rounding(stack, merged, expected, cast, 1e-5)
    out = np.full(stack.base.size, 7, DTYPES[dtype])
    answers = merge_stack(Plain(), stack, survey, cast, out, (Rounding(),))
    assert_same_bits(out, expected, "stored")
    assert answers == {Rounding(1e-5): counts}
