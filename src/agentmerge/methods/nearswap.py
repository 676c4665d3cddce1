"""Nearswap: take an agent's number where it is near the base's, and go no further than t where it is not.

By alchemonaut, https://huggingface.co/alchemonaut/QuartetAnemoi-70B-t0.0001; no paper.

    w[i]      = clip(t / max(|tau[i]|, 1e-6), 0, 1)
    merged[i] = base[i] + weight * w[i] * tau[i]

which cuts the task vector to [-t, t], as t / |tau| * tau is t with the sign of tau. Two models in all: a base and one
agent. The 1e-6 shows where t is smaller alone: there a change below 1e-6 is multiplied by t / 1e-6. mergekit has the
same formula, and no weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from agentmerge.errors import RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Context, Dilution, MergeMethod, added

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack

NEAR = 1e-6
"""Magnitudes below it count as it."""


class Nearswap(MergeMethod):
    """One agent's task vector, no element of which is larger than t."""

    about: ClassVar[Mapping[str, str]] = {"nearswap": "Nearswap: one agent's changes, each cut to a largest size."}

    name: Literal["nearswap"] = "nearswap"
    t: float = Field(default=1e-4, gt=0)
    """The largest change; that of the model which the method comes from, if nothing else is said."""

    def bind(self, context: Context) -> Self:
        """One agent, as the rule says nothing of several."""
        if len(context.weights) != 1:
            raise RecipeError(
                f"agents: nearswap takes one agent, found {len(context.weights)}",
                todo="Give it one; to cut the changes of several, nothing is here: `breadcrumbs` leaves them out.",
                where=Where(path="agents"),
            )
        return self

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]."""
        tau, size = stack.task_vectors()[0], np.float32(self.t)
        factor = size / np.maximum(np.abs(tau), np.float32(NEAR))
        near = np.where(factor < 1, factor * tau, tau)
        return added(stack.base, stack.weight()[0] * near)

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("nearswap",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        settings = formulas.Nearswap(self.overlap.threshold, float(stack.weight()[0]), self.t)
        return (Kernel("nearswap", settings, stack),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """1 up to t, less beyond."""
        return Dilution.unknown(len(names), f"1 for changes up to {self.t:g}, {self.t:g} by their size beyond")
