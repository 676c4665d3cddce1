"""Answer several questions about one stack, in one compiled pass where a kernel knows them. Knows no methods."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agentmerge.kernels import cpu
from agentmerge.survey.integrity import Integrity, IntegrityCounts, fingerprint_key
from agentmerge.survey.overlap import Overlap, OverlapCounts

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.survey.statistic import Foldable, Statistic
    from agentmerge.tensors import Stack


def observe(statistics: Sequence[Statistic[Any]], stack: Stack) -> dict[Foldable[Any], Any]:
    """The answer to each question for one stack; equal to every statistic's own `observe`, bit for bit."""
    compiled = bool(statistics) and cpu.supports(stack.base, stack.agents)
    answers = _compiled(statistics, stack) if compiled else {}
    with np.errstate(all="ignore"):
        return answers | {s: _in_pieces(s, stack) for s in statistics if s not in answers}


def _in_pieces(statistic: Statistic[T], stack: Stack) -> T:
    """The definition, part by part, so that its temporaries stay in the processor's cache."""
    if stack.base.size == 0:
        return statistic.observe(stack)
    return reduce(statistic.combine, map(statistic.observe, stack.pieces()))


def _compiled(statistics: Sequence[Statistic[Any]], stack: Stack) -> dict[Foldable[Any], Any]:
    key, start = fingerprint_key(stack.block.tensor.name), stack.block.start
    answers: dict[Foldable[Any], Any] = {}
    for overlap in (s for s in statistics if isinstance(s, Overlap)):
        exactly, different, *integrity = cpu.count(stack.base, stack.agents, overlap.threshold, key, start)
        answers[overlap] = OverlapCounts(stack.base.size, exactly, different)
        answers[Integrity()] = IntegrityCounts(*integrity)
    if Integrity() in statistics and not answers:
        answers[Integrity()] = IntegrityCounts(*cpu.integrity(stack.base, stack.agents, key, start))
    return {s: answers[s] for s in statistics if s in answers}
