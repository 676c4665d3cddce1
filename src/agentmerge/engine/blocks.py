"""One block from its sources through a method to stored numbers. Knows neither threads nor output files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.checkpoint.positional import aligned_empty
from agentmerge.survey.copied import Copied
from agentmerge.survey.fused import observe
from agentmerge.survey.rounding import Rounding, RoundingCounts
from agentmerge.tensors import DTYPES, MERGEABLE, Block, Stack, as_float32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.checkpoint.reader import Checkpoint
    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.plan import Plan, Task
    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Cast


class Buffers:
    """The memory of one worker, a row per source and one for the output, made once and used again."""

    def __init__(self) -> None:
        self._rows: dict[str, Array] = {}

    def take(self, row: str, dtype: str, elements: int) -> Array:
        """An uninitialised array [elements] in a row's memory; what the row held before is gone."""
        nbytes = elements * DTYPES[dtype].itemsize
        if row not in self._rows or self._rows[row].size < nbytes:
            self._rows[row] = aligned_empty(nbytes)
        return self._rows[row][:nbytes].view(DTYPES[dtype])


def read_stack(plan: Plan, task: Task, block: Block, buffers: Buffers) -> Stack:
    """The block of the base and of every agent; an absent agent is the base itself."""
    base = _read(plan.base, block, buffers, "base")
    agents = [base if n in task.absent else _read(plan.agents[n], block, buffers, n) for n in plan.names]
    extra = {
        kind: tuple(_extra(plan, task, block, buffers, kind, t) for t in range(len(plan.names))) for kind in plan.extra
    }
    return Stack(block, base, tuple(agents), plan.names, plan.weights, extra)


def _extra(plan: Plan, task: Task, block: Block, buffers: Buffers, kind: str, t: int) -> Array:
    """What is read beside one agent's weights; zeros for an absent agent."""
    if plan.names[t] in task.absent:
        return np.zeros(block.elements, np.float32)
    return _read(plan.extra[kind][t], block, buffers, f"{plan.names[t]}.{kind}")


def fold_block(plan: Plan, task: Task, block: Block, statistics: Sequence[Statistic[Any]], buffers: Buffers) -> Answers:
    """The answers for one block."""
    return observe(statistics, read_stack(plan, task, block, buffers))


def map_block(
    plan: Plan,
    task: Task,
    block: Block,
    survey: Survey,
    statistics: Sequence[Statistic[Any]],
    buffers: Buffers,
) -> tuple[Array, Answers]:
    """The stored numbers of one block, and the answers that fall out on the way.

    Returns:
        [n] in the output dtype, valid until the buffers are used again; and the answers.
    """
    if task.method is None:
        return _copy_block(plan, task, block, buffers)
    stack = read_stack(plan, task, block, buffers)
    answers = observe(statistics, stack)
    out = buffers.take("", task.cast.dtype, block.elements)
    answers[Rounding(task.method.threshold)] = merge_stack(task.method, stack, survey, task.cast, out)
    return out, answers


def merge_stack(method: MergeMethod, stack: Stack, survey: Survey, cast: Cast, out: Array) -> RoundingCounts:
    """Merge one stack into `out`, [n] in the output dtype, by a kernel where one fits; the RoundingCounts."""
    with np.errstate(all="ignore"):
        counts = method.fused(stack, survey, cast, out)
        if counts is not None:
            return counts
        if method.reach == "tensor":
            return _merge_plainly(method, stack, survey, cast, out)
        first, rounding, total = stack.block.start, Rounding(method.threshold), RoundingCounts.zero(len(stack.agents))
        for piece in stack.pieces():
            part = out[piece.block.start - first : piece.block.stop - first]
            total = rounding.combine(total, _merge_plainly(method, piece, survey, cast, part))
        return total


def _merge_plainly(method: MergeMethod, stack: Stack, survey: Survey, cast: Cast, out: Array) -> RoundingCounts:
    """By the method's definition; the cast and the counts are the same for every method."""
    merged = method.merge(stack, survey)
    out[:] = cast.apply(merged, stack.block.tensor.name, stack.block.start)
    if cast.dtype == "F64" and stack.base.dtype == np.float64:  # float32 can't hold the base's own bits
        same = merged == as_float32(stack.base)
        out[same] = stack.base[same]
    return Rounding(method.threshold).observe(stack, merged, out, cast)


def _copy_block(plan: Plan, task: Task, block: Block, buffers: Buffers) -> tuple[Array, Answers]:
    if task.tensor.dtype not in MERGEABLE:
        stack = read_stack(plan, task, block, buffers)
        taken = stack.base if task.taken_from == "base" else stack.agents[plan.names.index(task.taken_from)]
        return taken, {Copied(): Copied().observe(stack)}
    source = plan.base if task.taken_from == "base" else plan.agents[task.taken_from]
    values = _read(source, block, buffers, "base")
    stored = values
    if values.dtype != DTYPES[task.cast.dtype]:
        with np.errstate(all="ignore"):
            stored = task.cast.apply(as_float32(values), task.tensor.name, block.start)
    return stored, {Rounding(): _copied_counts(values, stored, len(plan.names))}


def _copied_counts(values: Array, stored: Array, agents: int) -> RoundingCounts:
    """NaN, inf and overflow can go wrong in a copy; no agent's changes are at stake."""
    finite = np.isfinite(values)
    overflow = int((np.isinf(stored) & finite).sum())
    return replace(RoundingCounts.zero(agents), overflow=overflow, non_finite=int((~finite).sum()))


def _read(source: Checkpoint, block: Block, buffers: Buffers, row: str) -> Array:
    dtype = source.specs[block.tensor.name].dtype
    return source.read(block, buffers.take(row, dtype, block.elements))
