"""Calibrate: scale any merge so that, on average, the agents keep as much of their change as asked.

    retention[t] = <merged - base, tau[t]> / <tau[t], tau[t]>, over all merged elements
    s            = retention / mean over t of retention[t]
    merged'      = base + s * (merged - base)

`per: matrix` gives each matrix of a linear layer its own s where the inner method takes whole ones, and each other
tensor: such a matrix is solved once and nothing of it is kept meanwhile. On the shipped agents it scores as one s does.

1 means that the merge moves as far along an agent's change as the agent did. Averaging N unrelated agents leaves 1 / N,
and RAM 0.5 to 0.7. On the agents of docs/evidence-tiny.md a calibrated RAM, Task Arithmetic or TIES scored worse than
`ram_plus_auto`, which reaches the same by what is unique alone. It asks for one more fold, over the inner method's own
output. An agent that changed nothing has no retention and takes no part in the mean. Store the result with stochastic
rounding or in float32: rounding to the nearest bfloat16 undoes most of a scale near 1, and the record says by how much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agentmerge import kernels
from agentmerge.errors import DataError
from agentmerge.kernels import Kernel, formulas
from agentmerge.machine import available_cpus
from agentmerge.methods.base import Dilution, added, before_merging
from agentmerge.methods.inner_retention import InnerRetention, RetentionOutside, draft_of, inner_merge, settings_of
from agentmerge.methods.kernel import in_parts, parts_of, sees_whole
from agentmerge.methods.layers import WholeMatrices
from agentmerge.methods.parts import is_joined, part_by_part
from agentmerge.methods.wrapper import Wrapper, chain_of
from agentmerge.survey.retention import (
    StoredRetention,
    mean_retention,
    retention_by,
    retention_sums,
    retentions,
    undone,
)
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.methods.base import Told, Work
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Array, Stack, TensorSpec


MERGED = "merged"
"""What the inner merge is called beside a stack that is taken apart."""
AGAIN = 300
"""FLOP per element and processor beyond which reading a result from the disk is quicker than computing it again."""


class Calibrate(Wrapper):
    """Another method's merge, scaled to a mean retention."""

    about: ClassVar[Mapping[str, str]] = {
        "calibrate": "Another method's merge, scaled so that agents keep their changes; ram_plus_auto scored better."
    }

    name: Literal["calibrate"] = "calibrate"
    retention: float = Field(default=1.0, gt=0)
    """Mean over the agents of <merged - base, tau> / <tau, tau>, before the output cast."""
    per: Literal["model", "matrix"] = "model"
    """What has one s: everything; or each matrix where the inner method takes whole ones, and each other tensor."""

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """The inner method's, whose merge is kept from the fold that measures it where that is quicker."""
        work = super().work(tensor, agents)
        if self.per == "matrix":
            return work
        dear = work.device == "cpu" and work.flop > AGAIN * available_cpus() * tensor.elements
        dear = dear and not any(one.reports for one in chain_of(self.then))
        return replace(work, draft=draft_of(self.then)) if dear else replace(work, times=2 * work.times)

    def ask(self, survey: Survey) -> tuple[Foldable[Any], ...]:
        """What the inner method asks; once it is ready, the retention of its merge; and that of what is stored."""
        asked = super().ask(survey)
        if not before_merging(asked) and not survey.knows(self._kept(survey)):
            asked = (*asked, self._kept(survey))
        return (*asked, StoredRetention())

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner merge, its distance from the base scaled, float32 [n]."""
        if self.per == "matrix" and sees_whole(self.then, stack):
            return self._by_matrix(stack, super().merge(stack, survey))
        update = self._inner_merge(stack, survey) - as_float32(stack.base)
        return added(stack.base, np.float32(self._scale_of(stack.block.tensor, survey)) * update)

    @property
    def loops(self) -> tuple[str, ...]:
        """The inner method's, and what scales."""
        return (*self.then.loops, "stretched", *(("given",) if self.per == "matrix" else ()))

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The inner method's kernel, or its merge of a whole tensor; then, part by part, what scales and casts."""
        threshold = self.overlap.threshold
        if self.per == "matrix" and sees_whole(self.then, stack):
            return (Kernel("given", formulas.Given(threshold), stack, (self.merge(stack, survey),)),)
        settings = formulas.Stretched(threshold, self._scale_of(stack.block.tensor, survey))
        if sees_whole(self.then, stack):
            return (Kernel("stretched", settings, stack, (self._inner_merge(stack, survey),)),)

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

    def _scale_of(self, tensor: TensorSpec, survey: Survey) -> float:
        """The s of an element of this tensor; one that moves away from what the agents learned stays as it is."""
        if self.per == "model":
            return self.scale(survey)
        mean = mean_retention(retentions(survey.total(self._kept(survey)).of(tensor.name)))
        return 1.0 if mean is None or mean <= 0 else self.retention / mean

    def _by_matrix(self, stack: Stack, merged: Array) -> Array:
        """Each matrix of the inner merge with its own s, float32 [n]."""
        tensor = stack.block.tensor
        work = self.then.work(tensor, len(stack.agents))
        by_matrix = work.reach == "matrix" or bool(work.gram or work.keep)
        turned = any(one.is_turned(tensor) for one in chain_of(self.then) if isinstance(one, WholeMatrices))
        if by_matrix and is_joined(tensor, turned=turned):
            joined = replace(stack, extra={MERGED: (merged,)})
            return part_by_part(
                joined, turned, lambda part: self._by_matrix(replace(part, extra={}), part.extra[MERGED][0])
            )
        size = prod(tensor.shape[-2:]) if by_matrix else stack.base.size
        for low in range(0, stack.base.size, size):
            part, own = stack.part(low, low + size), merged[low : low + size]
            backend = kernels.choose(part)
            sums = retention_sums(part, own) if backend is None else retention_by(backend, part, own)
            mean = mean_retention(retentions(sums))
            scale = 1.0 if mean is None or mean <= 0 else self.retention / mean
            own[:] = added(part.base, np.float32(scale) * (own - as_float32(part.base)))
        return merged

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """Lambda times s; s, and each agent's retention under the inner method, after the scale and as stored."""
        inner = self.then.told(survey.seen_through(_of_inner), names)
        if not survey.knows(self._kept(survey)):
            return replace(inner, scales=None)
        kept, scale, notes = dict[str, list[float | None]](), None, inner.notes
        if self.per == "model":
            before, scale = retentions(survey.total(self._kept(survey))), self.scale(survey)
            kept = {"before": before, "after": [value if value is None else value * scale for value in before]}
        if survey.knows(StoredRetention()):
            kept["stored"] = retentions(survey.total(StoredRetention()))
            notes = (*undone("calibrate", mean_retention(kept["stored"]), self.retention), *notes)
        retention = {key: dict(zip(names, values, strict=True)) for key, values in kept.items()}
        learned = {**inner.learned, "calibration_scale": scale, "retention": retention}
        scales = None if inner.scales is None or scale is None else tuple(scale * value for value in inner.scales)
        return replace(inner, scales=scales, learned=learned, notes=notes)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The inner method's times s, where its retention is known."""
        inner = super().dilution(names, counts, energy)
        known = np.isfinite(inner.retention).any()
        scale = self.retention / np.nanmean(inner.retention) if known else np.nan
        note = f"{self.then.name.upper()} to mean retention {self.retention:g}"
        if self.per == "matrix":
            return Dilution.unknown(len(names), f"{note} in every matrix")
        return Dilution(inner.multiplier * scale, inner.retention * scale, note, inner.linear)

    def _inner_merge(self, stack: Stack, survey: Survey) -> Array:
        """The inner merge as the fold kept it, else made again: the same bits."""
        if survey.kept is not None:
            block = stack.block
            kept = survey.kept.take(f"{draft_of(self.then)} {block.tensor.name}", block.start, block.elements)
            if kept is not None:
                return kept
        return super().merge(stack, survey)

    def _kept(self, survey: Survey) -> InnerRetention:
        kind = InnerRetention if self.per == "model" else RetentionOutside
        return kind(settings_of(self.then), self.then, survey)


@dataclass(frozen=True)
class InnerStored(StoredRetention):
    """What would be stored of the inner merge, which nobody asks: the inner method must not take ours for its own."""


def _of_inner(question: Foldable[Any]) -> Foldable[Any]:
    return InnerStored() if question == StoredRetention() else question
