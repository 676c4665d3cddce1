"""Answer several questions about one stack, each by its kernel where it has one. Knows no methods."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agentmerge.kernels import cpu, folds
from agentmerge.survey.integrity import Integrity, IntegrityCounts, fingerprint_key
from agentmerge.survey.overlap import Overlap, OverlapCounts

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.survey.statistic import Foldable, Statistic
    from agentmerge.tensors import Stack


def observe(statistics: Sequence[Statistic[Any]], stack: Stack) -> dict[Foldable[Any], Any]:
    """The answer to each question for one stack; equal to every statistic's own `observe`, bit for bit."""
    with np.errstate(all="ignore"):
        answers = _together(statistics, stack)
        return answers | {s: _answer(s, stack) for s in statistics if s not in answers}


def _together(statistics: Sequence[Statistic[Any]], stack: Stack) -> dict[Foldable[Any], Any]:
    """What every record reports, Overlap and Integrity, in one pass where both are asked."""
    overlap = next((s for s in statistics if isinstance(s, Overlap)), None)
    if overlap is None or Integrity() not in statistics or not cpu.supports(stack.base, stack.agents):
        return {}
    key, start = fingerprint_key(stack.block.tensor.name), stack.block.start
    exactly, different, *integrity = folds.count(stack.base, stack.agents, overlap.threshold, key, start)
    counts = OverlapCounts(stack.base.size, exactly, different)
    return {overlap: counts, Integrity(): IntegrityCounts(*integrity)}


def _answer(statistic: Statistic[T], stack: Stack) -> T:
    """By its kernel, or by the definition part by part, so that its temporaries stay in the processor's cache."""
    answer = statistic.fused(stack)
    if answer is not None:
        return answer
    if stack.base.size == 0:
        return statistic.observe(stack)
    return reduce(statistic.combine, map(statistic.observe, stack.pieces()))
