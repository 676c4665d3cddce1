"""Answer several questions about one stack, each by its kernel where it has one."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agentmerge import kernels

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.survey.statistic import Foldable, Statistic
    from agentmerge.tensors import Stack


def observe(statistics: Sequence[Statistic[Any]], stack: Stack) -> dict[Foldable[Any], Any]:
    """The answer to each question for one stack; equal to every statistic's own `observe`, bit for bit."""
    answers: dict[Foldable[Any], Any] = {}
    with np.errstate(all="ignore"):
        backend = kernels.choose(stack)
        for statistic in statistics:
            if backend is not None and statistic not in answers:
                left = [other for other in statistics if other not in answers]
                answers |= statistic.kernel_with(left, stack, backend)
            if statistic not in answers:
                answers[statistic] = defined(statistic, stack)
    return answers


def defined(statistic: Statistic[T], stack: Stack) -> T:
    """The answer by the definition, part by part, so that its temporaries stay in the processor's cache."""
    if stack.base.size == 0:
        return statistic.observe(stack)
    return reduce(statistic.answers.combine, map(statistic.observe, statistic.parts(stack)))
