"""The contract of every kernel: it equals its definition bit for bit, on numbers that are meant to break it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.errors import DataError
from agentmerge.methods.kernel import merge_by_kernels
from agentmerge.survey.rounding import Rounding
from agentmerge.tensors import DTYPES, LEAF, Cast
from agentmerge.testing.stacks import assert_same_bits, hostile_stacks, random_stack, survey_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Stack

GUARD = 64
"""Elements before and behind the output, which no kernel may write."""


def assert_kernel_contract(
    method: MergeMethod, *, agents: Sequence[int] = (1, 3, 9, 64), stacks: Iterable[Stack] | None = None
) -> None:
    """Raise AssertionError unless a method's kernel merges, casts and counts as the definition does, bit for bit.

    Over odd sizes, blocks from the middle of a tensor, mixed dtypes, NaN, inf, subnormals, -0.0 and up to 64 agents;
    to bfloat16, float16 and float32, rounded to nearest and stochastically; and it writes nothing beyond its output.

    Args:
        method: with its settings; one that has no kernel for any of the stacks fails.
        agents: the numbers of agents that it can merge.
        stacks: what is merged; hostile ones when None.
    """
    compared = 0
    for stack in hostile_stacks(agents) if stacks is None else stacks:
        try:
            survey = survey_of(method, [stack])
        except DataError:  # these numbers forbid the merge, which the method itself tells
            continue
        compared += sum(_compared(method, stack, survey, cast) for cast in _casts(stack.base.size))
    if not compared:
        raise AssertionError(f"{method!r} has no kernel for any of these stacks, so there is nothing to compare")


def assert_kernel_equals_definition(method: MergeMethod, agents: int = 3) -> None:
    """Raise AssertionError where a method's kernel merges something else than `merge` and the cast.

    The quick look that `assert_contract` takes, at finite numbers; passes for a method without a kernel.
    """
    for seed in (0, 1):
        settings: dict[str, Any] = {"elements": 2 * LEAF + 1, "dtypes": ("BF16", "F32"), "huge": True}
        weights = (1.0, 0.7, 1.3)[:agents]
        stack = random_stack(seed, agents=agents, weights=weights, importance=True, **settings)
        survey = survey_of(method, [stack])
        for cast in _casts(seed):
            _compared(method, stack, survey, cast)


def _casts(seed: int) -> Iterator[Cast]:
    for dtype in ("BF16", "F16", "F32"):
        yield Cast(dtype)
        yield Cast(dtype, "stochastic", seed)


def _compared(method: MergeMethod, stack: Stack, survey: Survey, cast: Cast) -> bool:
    """Whether there was a kernel; AssertionError where it differs."""
    elements, tensor = stack.base.size, stack.block.tensor.name
    guarded = np.full(elements + 2 * GUARD, 7, DTYPES[cast.dtype])
    out = guarded[GUARD : GUARD + elements]
    with np.errstate(all="ignore"):
        try:
            counts = merge_by_kernels(method, stack, survey, cast, out)
        except DataError:
            return False
        if counts is None:
            return False
        merged = method.merge(stack, survey)
        expected = cast.apply(merged, tensor, stack.block.start)
        counted = Rounding(method.overlap.threshold).observe(stack, merged, expected, cast)
    place = f"{method!r} by its kernel: {elements} elements, {len(stack.agents)} agents, {cast}"
    assert_same_bits(out, expected, place)
    if counts != counted:
        raise AssertionError(f"{place}: counted {counts}, expected {counted}")
    if not (np.delete(guarded, np.s_[GUARD : GUARD + elements]) == 7).all():
        raise AssertionError(f"{place}: wrote beyond its output")
    return True
