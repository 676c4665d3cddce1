"""One block from its sources through a method to stored numbers. Knows neither threads nor output files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge import kernels
from agentmerge.errors import DataError
from agentmerge.files import reading
from agentmerge.files.positional import PAGE, aligned_empty
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.kernel import run
from agentmerge.survey.copied import Copied
from agentmerge.survey.rounding import Rounding, RoundingCounts
from agentmerge.tensors import DTYPES, MERGEABLE, Block, Stack, as_float32

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.plan import Plan, Task
    from agentmerge.methods.base import MergeMethod
    from agentmerge.sources.folder import Opened
    from agentmerge.survey.statistic import AfterStatistic, Survey
    from agentmerge.tensors import Array, Cast

    Ahead = tuple[Task, Block] | None


class Buffers:
    """The memory of one worker, a row per source and one for the output, made once and used again."""

    def __init__(self) -> None:
        self._rows: dict[str, Array] = {}

    def take(self, row: str, dtype: str, elements: int, phase: int = 0) -> Array:
        """An uninitialised array [elements] in a row's memory; what the row held before is gone.

        Args:
            row: which memory.
            dtype: safetensors spelling.
            elements: of the array.
            phase: bytes by which it starts behind a page boundary, a multiple of the item size.
        """
        nbytes = elements * DTYPES[dtype].itemsize
        if row not in self._rows or self._rows[row].size < nbytes + phase:
            self._rows[row] = aligned_empty(nbytes + PAGE)
        return self._rows[row][phase : phase + nbytes].view(DTYPES[dtype])


def read_stack(plan: Plan, task: Task, block: Block, buffers: Buffers, ahead: Ahead = None) -> Stack:
    """The block of the base and of every agent; an absent agent is the base itself.

    Args:
        plan: the sources.
        task: of the block's tensor.
        block: what to read.
        buffers: of this worker.
        ahead: the task and block that the OS may fetch meanwhile.
    """
    found = _read(plan, task, block, buffers, ahead)
    base = found["base"]
    agents = tuple(base if name in task.absent else found[name] for name in plan.names)
    extra = {
        kind: tuple(_extra(plan, task, block, kind, t, found) for t in range(len(plan.names)))
        for kind in (plan.extra if task.method is not None else ())
    }
    return Stack(block, base, agents, plan.names, plan.weights, extra)


def _extra(plan: Plan, task: Task, block: Block, kind: str, t: int, found: Mapping[str, Array]) -> Array:
    """What is read beside one agent's weights; zeros for an absent agent."""
    if plan.names[t] in task.absent:
        return np.zeros(block.elements, np.float32)
    values = found[f"{kind}/{plan.names[t]}"]
    wide = as_float32(values)
    if not ((wide >= 0) & (wide < np.inf)).all():
        raise DataError(
            f"{task.tensor.name}: {kind} of agent '{plan.names[t]}' ({plan.extra[kind][t].source}) holds NaN, inf or "
            "negative numbers, expected finite ones of at least 0. Make it again with `agentmerge importance`."
        )
    return values


def _read(plan: Plan, task: Task, block: Block, buffers: Buffers, ahead: Ahead) -> dict[str, Array]:
    """The block of everything that the task reads, by its name in `Plan.sources_of`."""
    sources, name = plan.sources_of(task), block.tensor.name
    arrays = {row: buffers.take(row, s.specs[name].dtype, block.elements) for row, s in sources.items()}
    missing = dict(sources)
    with ExitStack() as held:
        later = _expected(plan, *ahead, held) if ahead else {}
        spans = _spans(sources, block, held)
        done = reading.read(list(spans.values()), [arrays[row] for row in spans], list(later.values()))
        for row in [*spans][:done]:
            del missing[row]
    for row, source in missing.items():  # laid together by a view, or the read that failed, for its error
        source.read(block, arrays[row])
    return arrays


def _expected(plan: Plan, task: Task, block: Block, held: ExitStack) -> dict[str, tuple[int, int, int]]:
    """The spans of what is read next; what has none is told to the OS here."""
    sources = plan.sources_of(task)
    spans = _spans(sources, block, held)
    for row in sources.keys() - spans.keys():
        sources[row].expect(block)
    return spans


def _spans(sources: Mapping[str, Opened], block: Block, held: ExitStack) -> dict[str, tuple[int, int, int]]:
    """Descriptor, offset and bytes of the block in every source that has it as one piece; open until `held` ends."""
    found = {}
    for row, source in sources.items() if reading.supported() else ():
        span = source.span(block)
        if span is not None:
            held.callback(span.close)
            found[row] = span.fd, span.offset, span.nbytes
    return found


def map_block(
    plan: Plan,
    task: Task,
    block: Block,
    stack: Stack | None,
    survey: Survey,
    buffers: Buffers,
    ahead: Ahead = None,
) -> tuple[Array, Answers]:
    """The stored numbers of one block, and the answers that fall out on the way.

    Args:
        plan: the sources.
        task: what to do with the tensor.
        block: of it.
        stack: the block's stack; None for a tensor that is copied.
        survey: what the method asked for.
        buffers: of this worker.
        ahead: as for `read_stack`, where this is a copy, which is read here.

    Returns:
        [n] in the output dtype, valid until the buffers are used again; and the answers.
    """
    if task.method is None or stack is None:
        return _copy_block(plan, task, block, buffers, ahead)
    place, itemsize = task.places[0], DTYPES[task.cast.dtype].itemsize
    phase = (place.offset + block.start * itemsize) % PAGE  # so that whole pages of it are whole pages of the file
    out = buffers.take("", task.cast.dtype, block.elements, phase - phase % itemsize)
    return out, merge_stack(task.method, stack, survey, task.cast, out, plan.further)


def merge_stack(
    method: MergeMethod,
    stack: Stack,
    survey: Survey,
    cast: Cast,
    out: Array,
    further: Sequence[AfterStatistic[Any]] = (),
) -> Answers:
    """Merge one stack into `out`, [n] in the output dtype, by a kernel where one fits.

    Returns:
        Rounding at the method's threshold, what the method asks after, and what is asked further.
    """
    rounding = Rounding(method.overlap.threshold)
    asked = tuple(dict.fromkeys([*method.after(), *further]))
    with np.errstate(all="ignore"):
        if (answers := _by_kernels(method, stack, survey, cast, out, asked)) is not None:
            return answers
        whole = method.merge(stack, survey) if method.reach_of(stack.block.tensor) == "tensor" else None
        answers = {rounding: RoundingCounts.zero(len(stack.agents))}
        for piece in stack.pieces():
            part = slice(piece.block.start - stack.block.start, piece.block.stop - stack.block.start)
            merged = method.merge(piece, survey) if whole is None else whole[part]
            found = _stored(piece, merged, cast, out[part], rounding, asked)
            answers = {q: q.answers.combine(answers[q], found[q]) if q in answers else found[q] for q in found}
        return answers


def _by_kernels(
    method: MergeMethod,
    stack: Stack,
    survey: Survey,
    cast: Cast,
    out: Array,
    asked: Sequence[AfterStatistic[Any]],
) -> Answers | None:
    """All of it by kernels; None where one of them is lacking."""
    backend = kernels.choose(stack, cast.dtype)
    made = None if backend is None else method.kernel(stack, survey)
    if backend is None or made is None:
        return None
    answers: Answers = {Rounding(method.overlap.threshold): run(backend, made, stack, cast, out)}
    for question in asked:
        if (answer := question.kernel(stack, out, backend)) is None:
            return None
        answers[question] = answer
    return answers


def _stored(
    stack: Stack, merged: Array, cast: Cast, out: Array, rounding: Rounding, after: Sequence[AfterStatistic[Any]]
) -> Answers:
    """Cast what a method merged into `out` and count; the same for every method."""
    given = replace(stack, extra={"merged": (merged,)})
    if merged.dtype == np.float32 and (backend := kernels.choose(given, cast.dtype)) is not None:
        kernel = Kernel("given", formulas.Given(rounding.threshold), given, (merged,))
        counts = run(backend, [kernel], stack, cast, out)
    else:
        out[:] = cast.apply(merged, stack.block.tensor.name, stack.block.start)
        if cast.dtype == "F64" and stack.base.dtype == np.float64:  # float32 can't hold the base's own bits
            same = merged == as_float32(stack.base)
            out[same] = stack.base[same]
        counts = rounding.observe(stack, merged, out, cast)
    return {rounding: counts, **{question: question.observe(stack, merged, out, cast) for question in after}}


def _copy_block(plan: Plan, task: Task, block: Block, buffers: Buffers, ahead: Ahead) -> tuple[Array, Answers]:
    if task.tensor.dtype not in MERGEABLE:
        stack = read_stack(plan, task, block, buffers, ahead)
        taken = stack.base if task.taken_from == "base" else stack.agents[plan.names.index(task.taken_from)]
        return taken, {Copied(): Copied().observe(stack)}
    values = _read(plan, task, block, buffers, ahead)[task.taken_from]
    stored = values
    if values.dtype != DTYPES[task.cast.dtype]:
        with np.errstate(all="ignore"):
            stored = task.cast.apply(as_float32(values), task.tensor.name, block.start)
    return stored, {Rounding(): _copied_counts(values, stored, len(plan.names))}


def _copied_counts(values: Array, stored: Array, agents: int) -> RoundingCounts:
    """NaN, inf and overflow can go wrong in a copy; no agent's changes are at stake."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(values)
        overflow = int((np.isinf(stored) & finite).sum())
    return replace(RoundingCounts.zero(agents), overflow=overflow, non_finite=int((~finite).sum()))
