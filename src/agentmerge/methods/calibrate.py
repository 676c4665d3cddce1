"""Calibrate: scale any merge so that, on average, the agents keep as much of their change as asked.

    retention[t] = <merged - base, tau[t]> / <tau[t], tau[t]>, over all merged elements
    s            = retention / mean over t of retention[t]
    merged'      = base + s * (merged - base)

1 means that the merge moves as far along an agent's change as the agent did. Averaging N unrelated agents leaves 1 / N,
and RAM 0.5 to 0.7. On the agents of docs/evidence.md a calibrated RAM, Task Arithmetic or TIES scored worse than
`ram_plus_auto`, which reaches the same by what is unique alone. It asks for one more fold, over the inner method's own
output. An agent that changed nothing has no retention and takes no part in the mean. Store the result with stochastic
rounding or in float32: rounding to the nearest bfloat16 undoes most of a scale near 1, and the record says by how much.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agentmerge.errors import DataError
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Dilution, added, before_merging
from agentmerge.methods.kernel import in_parts, merge_by_kernels, parts_of, sees_whole
from agentmerge.methods.wrapper import Wrapper
from agentmerge.survey.retention import (
    StoredRetention,
    mean_retention,
    retention_by,
    retention_sums,
    retentions,
    undone,
)
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.survey.sums import TreeSums, TreeSumsOf
from agentmerge.tensors import LEAF, Cast, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.kernels import Backend
    from agentmerge.methods.base import MergeMethod, Told
    from agentmerge.survey.answers import Answers
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Foldable
    from agentmerge.tensors import Array, Stack, TensorSpec


class Calibrate(Wrapper):
    """Another method's merge, scaled to a mean retention."""

    about: ClassVar[Mapping[str, str]] = {
        "calibrate": "Another method's merge, scaled so that agents keep their changes; ram_plus_auto scored better."
    }

    name: Literal["calibrate"] = "calibrate"
    retention: float = Field(default=1.0, gt=0)
    """Mean over the agents of <merged - base, tau> / <tau, tau>, before the output cast."""

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What the inner method asks; once it is ready, the retention of its merge; and that of what is stored."""
        asked = super().ask(survey)
        if not before_merging(asked) and not survey.knows(self._kept(survey)):
            asked = (*asked, self._kept(survey))
        return (*asked, StoredRetention())

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner merge, its distance from the base scaled, float32 [n]."""
        update = super().merge(stack, survey) - as_float32(stack.base)
        return added(stack.base, np.float32(self.scale(survey)) * update)

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what scales."""
        return (*self.then.loops, "stretched")

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's kernel, or its merge of a whole tensor; then, part by part, what scales and casts."""
        settings = formulas.Stretched(self.overlap.threshold, self.scale(survey))
        if sees_whole(self.then, stack):
            return (Kernel("stretched", settings, stack, (self.then.merge(stack, survey),)),)

        def stretched(part: Stack) -> Iterable[Kernel] | None:
            merged = inner_merge(self.then, part, survey)
            return None if merged is None else (Kernel("stretched", settings, part, (merged,)),)

        return in_parts(stack, stretched, parts_of(self.then, stack))

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
                f"calibrate: the agents' mean retention under '{self.then.name}' is {mean:.3g}",
                expected="more than 0: the merge moves away from what they learned",
                todo="Choose another inner method.",
            )
        return self.retention / mean

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """Lambda times s; s, and each agent's retention under the inner method, after the scale and as stored."""
        inner = self.then.told(survey.seen_through(_of_inner), names)
        if not survey.knows(self._kept(survey)):
            return replace(inner, scales=None)
        before, scale = retentions(survey.total(self._kept(survey))), self.scale(survey)
        kept = {"before": before, "after": [value if value is None else value * scale for value in before]}
        notes = inner.notes
        if survey.knows(StoredRetention()):
            kept["stored"] = retentions(survey.total(StoredRetention()))
            notes = (*undone("calibrate", mean_retention(kept["stored"]), self.retention), *notes)
        retention = {key: dict(zip(names, values, strict=True)) for key, values in kept.items()}
        learned = {**inner.learned, "calibration_scale": scale, "retention": retention}
        scales = None if inner.scales is None else tuple(scale * value for value in inner.scales)
        return replace(inner, scales=scales, learned=learned, notes=notes)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The inner method's times s, where its retention is known."""
        inner = super().dilution(names, counts, energy)
        known = np.isfinite(inner.retention).any()
        scale = self.retention / np.nanmean(inner.retention) if known else np.nan
        note = f"{self.then.name.upper()} to mean retention {self.retention:g}"
        return Dilution(inner.multiplier * scale, inner.retention * scale, note, inner.linear)

    def _kept(self, survey: Survey) -> InnerRetention:
        return InnerRetention(json.dumps(self.then.model_dump(mode="json"), sort_keys=True), self.then, survey)


@dataclass(frozen=True)
class InnerStored(StoredRetention):
    """What would be stored of the inner merge, which nobody asks: the inner method must not take ours for its own."""


def _of_inner(question: Foldable[Any]) -> Foldable[Any]:
    return InnerStored() if question == StoredRetention() else question


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

    def share(self, tensor: TensorSpec, agents: int) -> float:
        """As of the method whose merge it is."""
        return float(self.method.work(tensor, agents).share)

    def observe(self, stack: Stack) -> TreeSums:
        """Merge one stack and sum."""
        return retention_sums(stack, self.method.merge(stack, self.survey))

    def kernel(self, stack: Stack, kernels: Backend) -> TreeSums | None:
        """The same by kernels, part by part; what must be merged whole is merged by its definition before."""
        if sees_whole(self.method, stack):
            return retention_by(kernels, stack, self.method.merge(stack, self.survey))
        total = TreeSums(2 * len(stack.agents))
        for part in parts_of(self.method, stack):
            merged = inner_merge(self.method, part, self.survey)
            if merged is None:
                return None
            total += retention_by(kernels, part, merged)
        return total

    def parts(self, stack: Stack, elements: int = 32 * LEAF) -> Iterable[Stack]:
        """Those that the method may see one by one."""
        return parts_of(self.method, stack, elements)


def inner_merge(method: MergeMethod, stack: Stack, survey: Survey) -> Array | None:
    """What the method's kernel merges, float32 [n]; None where it has none for a piece of this tensor."""
    if sees_whole(method, stack):
        return None
    merged = np.empty(stack.base.size, np.float32)
    return None if merge_by_kernels(method, stack, survey, Cast("F32"), merged) is None else merged
