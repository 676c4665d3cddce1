"""Calibrate: scale any merge so that, on average, the agents keep as much of their change as asked. Knows no files.

    retention[t] = <merged - base, tau[t]> / <tau[t], tau[t]>, over all merged elements
    s            = retention / mean over t of retention[t]
    merged'      = base + s * (merged - base)

1 means that the merge moves as far along an agent's change as the agent did. Averaging N unrelated agents leaves 1 / N,
and RAM about 0.7; merges at 1 to 1.2 did best in the trials that this method comes from. It asks for one more fold,
over the inner method's own output. An agent that changed nothing has no retention and takes no part in the mean. Store
the result with stochastic rounding or in float32: rounding to the nearest bfloat16 undoes most of a scale near 1, and
the record says by how much.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from agentmerge.errors import DataError
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import added
from agentmerge.methods.kernel import CACHED, in_parts, merge_by_kernels
from agentmerge.methods.wrapper import Wrapper
from agentmerge.survey.retention import StoredRetention, mean_retention, retention_by, retention_sums, retentions
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.survey.sums import TreeSums, TreeSumsOf
from agentmerge.tensors import LEAF, Cast, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentmerge.kernels import Backend
    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.answers import Answers
    from agentmerge.survey.statistic import AfterStatistic
    from agentmerge.tensors import Array, Stack, TensorSpec

TOLERANCE = 0.02
"""Stored mean retention off by more than this is worth a warning."""


class Calibrate(Wrapper):
    """Another method's merge, scaled to a mean retention."""

    about: ClassVar[Mapping[str, str]] = {
        "calibrate": "Another method's merge, scaled so that the agents keep their changes."
    }

    name: Literal["calibrate"] = "calibrate"
    retention: float = Field(default=1.0, gt=0)
    """Mean over the agents of <merged - base, tau> / <tau, tau>, before the output cast."""

    def seeded(self, seed: int) -> Self:
        """The inner method with the recipe's seed."""
        return self.model_copy(update={"then": self.then.seeded(seed)})

    def reach_of(self, tensor: TensorSpec) -> Literal["element", "tensor"]:
        """As far as the inner method's."""
        return self.then.reach_of(tensor)

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """What the inner method asks; once it is ready, the retention of its merge."""
        if asked := self.then.ask(survey):
            return asked
        return () if survey.knows(self._kept(survey)) else (self._kept(survey),)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner merge, its distance from the base scaled, float32 [n]."""
        update = self.then.merge(stack, survey) - as_float32(stack.base)
        return added(stack.base, np.float32(self.scale(survey)) * update)

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what scales."""
        return (*self.then.loops, "stretched")

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's kernel, then the scale and the cast by another, part by part."""
        settings = formulas.Stretched(self.overlap.threshold, self.scale(survey))

        def stretched(part: Stack) -> Iterable[Kernel] | None:
            merged = inner_merge(self.then, part, survey)
            return None if merged is None else (Kernel("stretched", settings, part, (merged,)),)

        return None if self.reach_of(stack.block.tensor) == "tensor" else in_parts(stack, stretched)

    def scale(self, survey: Survey) -> float:
        """The s of the formula; 1 where no agent changed anything.

        Raises:
            DataError: the inner merge does not move along the agents' changes at all.
        """
        mean = survey.derived(self, lambda: mean_retention(retentions(survey.total(self._kept(survey)))))
        if mean is None:
            return 1.0
        if mean <= 0:
            raise DataError(
                f"calibrate: the agents' mean retention under '{self.then.name}' is {mean:.3g}, expected more than 0: "
                "the merge moves away from what they learned. Choose another inner method."
            )
        return self.retention / mean

    def after(self) -> tuple[AfterStatistic[Any], ...]:
        """The retention of what was stored."""
        return (StoredRetention(),)

    def learned(self, survey: Survey, names: tuple[str, ...]) -> dict[str, Any]:
        """The scale, and each agent's retention under the inner method, after the scale and as stored."""
        before, scale = retentions(survey.total(self._kept(survey))), self.scale(survey)
        found = {"before": before, "after": [value if value is None else value * scale for value in before]}
        if survey.knows(StoredRetention()):
            found["stored"] = retentions(survey.total(StoredRetention()))
        retention = {key: dict(zip(names, values, strict=True)) for key, values in found.items()}
        return {**self.then.learned(survey, names), "calibration_scale": scale, "retention": retention}

    def advice(self, survey: Survey) -> list[str]:
        """Say so when the output cast undid the scale."""
        stored = mean_retention(retentions(survey.total(StoredRetention())))
        if stored is None or abs(stored - self.retention) <= TOLERANCE * self.retention:
            return self.then.advice(survey)
        return [
            f"calibrate: the output cast left a mean retention of {stored:.3f} instead of {self.retention:g}; "
            "use --rounding stochastic or --dtype float32",
            *self.then.advice(survey),
        ]

    def agent_scales(self, survey: Survey) -> tuple[float, ...] | None:
        """The inner method's times the common scale; None while that is not folded, as in a probe."""
        inner = self.then.agent_scales(survey)
        if inner is None or not survey.knows(self._kept(survey)):
            return None
        return tuple(scale * self.scale(survey) for scale in inner)

    def _kept(self, survey: Survey) -> InnerRetention:
        return InnerRetention(json.dumps(self.then.model_dump(mode="json"), sort_keys=True), self.then, survey)


@dataclass(frozen=True)
class InnerRetention(Statistic[TreeSums]):
    """The sums of a method's retention; the method is ready to merge."""

    settings: str
    """The method as JSON: what tells this statistic from others."""
    method: Any = field(compare=False, repr=False)
    survey: Survey = field(compare=False, repr=False)
    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    @property
    def key(self) -> str:
        """By the method's settings."""
        return f"InnerRetention {self.settings}"

    def observe(self, stack: Stack) -> TreeSums:
        """Merge one stack and sum."""
        return retention_sums(stack, self.method.merge(stack, self.survey))

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same by kernels, part by part; none where the method must see a tensor whole."""
        total = TreeSums(2 * len(stack.agents))
        for part in stack.pieces(CACHED):
            merged = inner_merge(self.method, part, self.survey)
            if merged is None:
                return None
            total += retention_by(kernels, part, merged)
        return total

    def parts(self, stack: Stack, elements: int = 32 * LEAF) -> Iterable[Stack]:
        """All of it at once where the method must see a tensor whole."""
        whole = self.method.reach_of(stack.block.tensor) == "tensor"
        return (stack,) if whole else super().parts(stack, elements)


def inner_merge(method: MergeMethod, stack: Stack, survey: Survey) -> Array | None:
    """What the method's kernel merges, float32 [n]; None where it has none for a piece of this tensor."""
    if method.reach_of(stack.block.tensor) == "tensor":
        return None
    merged = np.empty(stack.base.size, np.float32)
    return None if merge_by_kernels(method, stack, survey, Cast("F32"), merged) is None else merged
