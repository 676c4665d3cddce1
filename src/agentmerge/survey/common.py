"""How many elements are NaN or inf with the same bits in every source: a mask's -inf, no damage. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentmerge.survey.answers import Answers, Integers
from agentmerge.survey.statistic import Statistic
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.survey.integrity import IntegrityCounts
    from agentmerge.tensors import Array, Stack


@dataclass(frozen=True)
class Common(Statistic[tuple[int, ...]]):
    """(elements that are NaN, elements that are inf) in base and agents alike.

    No sweep of its own is needed where Integrity is asked too: it finds one in hardly any stack (see `common`).
    """

    answers: ClassVar[Answers[tuple[int, ...]]] = Integers()

    def observe(self, stack: Stack) -> tuple[int, ...]:
        """Count one stack."""
        base, same = as_float32(stack.base), same_non_finite(stack)
        return int((same & np.isnan(base)).sum()), int((same & np.isinf(base)).sum())


def common(stack: Stack, counts: IntegrityCounts) -> tuple[int, ...]:
    """The answer of Common for a stack whose NaN and inf are counted: looked for only where every source has some."""
    return Common().observe(stack) if (counts.nan + counts.inf).all() else (0, 0)


def same_non_finite(stack: Stack) -> Array:
    """Where base and agents have the same NaN or the same inf, bool [n]; nowhere where no agent is read.

    An agent that counts as unchanged is the base's own array, and no witness.
    """
    with np.errstate(all="ignore"):
        base = np.ascontiguousarray(as_float32(stack.base))
        found: Array = ~np.isfinite(base)
        read = [agent for agent in stack.agents if agent.size and agent.ctypes.data != stack.base.ctypes.data]
        for agent in read:
            found = found & (base.view(np.uint32) == np.ascontiguousarray(as_float32(agent)).view(np.uint32))
    return found if read else np.zeros_like(found)
