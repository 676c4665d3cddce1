"""One block from its sources through a method to stored numbers. Knows neither threads nor output files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge import kernels
from agentmerge.alike.grams import no_gram
from agentmerge.alike.storage import restored
from agentmerge.engine.onto import put_onto
from agentmerge.errors import DataError
from agentmerge.files.positional import PAGE
from agentmerge.files.scratch import Rooms
from agentmerge.kernels import Kernel, formulas
from agentmerge.kernels.arguments import WIDTH
from agentmerge.methods.kernel import parts_of, run, sees_whole
from agentmerge.sources.together import read_blocks
from agentmerge.survey.copied import Copied
from agentmerge.survey.reported import Reported, collecting
from agentmerge.survey.rounding import Rounding, RoundingCounts
from agentmerge.tensors import DTYPES, LEAF, MERGEABLE, Block, Cast, Stack, as_float32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.plan import Job, Plan
    from agentmerge.methods.base import MergeMethod
    from agentmerge.sources.source import Weights
    from agentmerge.survey.statistic import Foldable, Survey
    from agentmerge.tensors import Array

    Ahead = tuple[Job, Block] | None

OUTPUT, MERGED, RESTORED = -1, -2, -3
"""The buffers of the output, of a merge that is put onto another checkpoint and, downwards from the last, of restored
rows, beside those of the rows themselves."""


class Buffers:
    """The memory of one worker, one buffer per row of a stack and one for the output, made once and used again."""

    def __init__(self) -> None:
        self._rooms = Rooms()

    def take(self, number: int, dtype: str, elements: int, phase: int = 0) -> Array:
        """An uninitialised array [elements] in a buffer; what it held before is gone.

        Args:
            number: which buffer.
            dtype: safetensors spelling.
            elements: of the array.
            phase: bytes by which it starts behind a page boundary, a multiple of the item size.
        """
        nbytes = elements * DTYPES[dtype].itemsize
        return self._rooms.take(number, nbytes + PAGE)[phase : phase + nbytes].view(DTYPES[dtype])


def read_rows(
    plan: Plan, job: Job, block: Block, buffers: Buffers, ahead: Ahead = None, *, writing: bool = False
) -> list[Array]:
    """The block of every row of a job, each in its stored dtype; valid until the buffers are used again.

    Args:
        plan: the sources.
        job: whose rows.
        block: of the job's tensor.
        buffers: of this worker.
        ahead: the job and block that the OS may fetch meanwhile.
        writing: whether the pass writes results, for which a job may read more.
    """
    arrays = [
        np.empty(row.tensor.elements, DTYPES[row.tensor.dtype])  # large, and no block after this one needs the room
        if row.whole
        else buffers.take(i, row.tensor.dtype, block.elements)
        for i, row in enumerate(job.read(writing=writing))
    ]
    later = () if ahead is None else _placed(plan, *ahead, writing=writing)
    read_blocks(_placed(plan, job, block, writing=writing), arrays, later)
    return arrays


def _placed(plan: Plan, job: Job, block: Block, *, writing: bool) -> list[tuple[Weights, Block]]:
    """The block of every row of a job, and whose it is."""
    return [(plan.sources[row.source].weights, row.read_for(block)) for row in job.read(writing=writing)]


def stacked(plan: Plan, job: Job, block: Block, rows: Sequence[Array], buffers: Buffers) -> Stack:
    """The rows of a job as a stack.

    An agent that counts as unchanged is the base itself, without importance; of one that stores its numbers more
    coarsely than the base, those that are the base's but for that are the base's.

    Args:
        plan: the sources.
        job: whose rows.
        block: of the job's tensor.
        rows: what was read.
        buffers: of this worker; the stack is valid until they are used again.
    """
    stored = tuple(rows[i] for i in job.agents)
    if not job.places:
        return Stack(block, rows[0], stored, tuple(job.rows[i].source for i in job.agents))
    importance = tuple(_importance(plan, job, t, rows) for t in range(len(job.importance)))
    extra = {"importance": importance} if importance else {}
    grams = tuple(_gram(plan, job, i, job.work.gram, rows) for i in job.grams)
    keep = _gram(plan, job, job.keep, job.work.keep, rows)
    stack = Stack(block, rows[0], stored, plan.names, plan.weights, extra, absent=job.absent, grams=grams, keep=keep)
    if not any(job.rows[i].rounds for i in job.agents):
        return stack
    agents = tuple(_restored(plan, job, block, i, rows, buffers) if job.rows[i].rounds else rows[i] for i in job.agents)
    return replace(stack, agents=agents, stored=stored)


def _restored(plan: Plan, job: Job, block: Block, i: int, rows: Sequence[Array], buffers: Buffers) -> Array:
    """Row i of a job, an agent's, with the base's number where it differs by storage alone."""
    row, size = job.rows[i], block.elements
    out = buffers.take(RESTORED - i, "F32", size + -size % WIDTH)
    return restored(block, rows[0], rows[i], plan.sources[row.source].weights.stored(row.tensor.name), out)[:size]


def _importance(plan: Plan, job: Job, t: int, rows: Sequence[Array]) -> Array:
    """The importance of agent t; zeros for an agent that counts as unchanged."""
    if job.importance[t] == 0:
        return np.zeros(rows[0].size, np.float32)
    values, name = rows[job.importance[t]], plan.names[t]
    wide = as_float32(values)
    if not ((wide >= 0) & (wide < np.inf)).all():
        source = plan.beside["importance"][name]
        raise DataError(
            f"{job.tensor.name}: importance of agent '{name}' ({source.text}) holds NaN, inf or negative numbers",
            expected="finite ones of at least 0",
            todo="Make it again with `agentmerge importance`.",
            where=replace(source.where, tensor=job.tensor.name),
        )
    return values


def _gram(plan: Plan, job: Job, i: int, shape: tuple[int, ...], rows: Sequence[Array]) -> Array | None:
    """Row i as a Gram matrix or a stack of them; None for row 0, that of an agent that counts as unchanged."""
    if i == 0:
        return None
    values = rows[i].reshape(shape)
    if (wrong := no_gram(values)) is not None:
        source = plan.sources[job.rows[i].source]
        raise DataError(
            f"{job.tensor.name}: {job.rows[i].words} ({source.text}): {wrong}",
            expected="X^T X, finite and symmetric",
            todo="Make them again with `agentmerge grams`.",
            where=replace(source.where, tensor=job.tensor.name),
        )
    return values


def merged(
    job: Job,
    stack: Stack,
    survey: Survey,
    buffers: Buffers,
    after: Sequence[Foldable[Any]],
    onto: Array | None = None,
) -> tuple[Array, Answers]:
    """Merge one block by its job's method.

    Args:
        job: one with a method.
        stack: the block of every source.
        survey: what the method asked for.
        buffers: of this worker.
        after: what is answered of the result.
        onto: [n], what is put onto in the base's place.

    Returns:
        [n] in the output dtype, valid until the buffers are used again; and the answers.
    """
    assert job.method is not None
    place, itemsize = job.places[0], DTYPES[job.cast.dtype].itemsize
    phase = (place.offset + stack.block.start * itemsize) % PAGE  # whole pages of it are then whole pages of the file
    out = buffers.take(OUTPUT, job.cast.dtype, stack.base.size, phase - phase % itemsize)
    with collecting() as facts:
        if onto is None:
            answers = merge_stack(job.method, stack, survey, job.cast, out, after)
        else:
            room = buffers.take(MERGED, "F32", stack.base.size)
            merge_stack(job.method, stack, survey, Cast("F32"), room, after[:1])
            answers = put_onto(stack, room, onto, job.cast, out, after)
    return out, {**answers, Reported(): facts} if Reported() in answers else answers


def merge_stack(
    method: MergeMethod, stack: Stack, survey: Survey, cast: Cast, out: Array, after: Sequence[Foldable[Any]]
) -> Answers:
    """Merge one stack into `out`, [n] in the output dtype, by a kernel where one fits.

    Args:
        method: what merges.
        stack: the block of every source.
        survey: what the method asked for.
        cast: to the output dtype.
        out: written.
        after: what is answered of the result: Rounding at the method's threshold first, then AfterStatistics.
    """
    rounding, *asked = after
    with np.errstate(all="ignore"):
        if (answers := _by_kernels(method, stack, survey, cast, out, after)) is not None:
            return answers
        whole = method.merge(stack, survey) if sees_whole(method, stack) else None
        answers = {rounding: RoundingCounts.zero(len(stack.agents))}
        for piece in parts_of(method, stack, 32 * LEAF) if whole is None else stack.pieces():
            part = slice(piece.block.start - stack.block.start, piece.block.stop - stack.block.start)
            result = method.merge(piece, survey) if whole is None else whole[part]
            found = _stored(piece, result, cast, out[part], rounding, asked)
            answers = {q: q.answers.combine(answers[q], found[q]) if q in answers else found[q] for q in found}
        return answers


def _by_kernels(
    method: MergeMethod, stack: Stack, survey: Survey, cast: Cast, out: Array, after: Sequence[Any]
) -> Answers | None:
    """All of it by kernels; None where one of them is lacking."""
    rounding, *asked = after
    backend = kernels.choose(stack, cast.dtype)
    made = None if backend is None else method.kernel(stack, survey)
    if backend is None or made is None:
        return None
    answers: Answers = {rounding: run(backend, made, stack, cast, out)}
    for question in asked:
        if (answer := question.kernel(stack, out, backend)) is None:
            return None
        answers[question] = answer
    return answers


def _stored(stack: Stack, result: Array, cast: Cast, out: Array, rounding: Any, asked: Sequence[Any]) -> Answers:
    """Cast what a method merged into `out` and count; the same for every method."""
    given = replace(stack, extra={"merged": (result,)})
    backend = kernels.choose(given, cast.dtype) if result.dtype == np.float32 else None
    if backend is not None:
        kernel = Kernel("given", formulas.Given(rounding.threshold), given, (result,))
        counts = run(backend, [kernel], stack, cast, out)
    else:
        out[:] = cast.apply(result, stack.block.tensor.name, stack.block.start)
        if cast.dtype == "F64" and stack.base.dtype == np.float64:  # float32 can't hold the base's own bits
            same = result == as_float32(stack.base)
            out[same] = stack.base[same]
        counts = rounding.observe(stack, result, out, cast)
    answers: Answers = {rounding: counts}
    for question in asked:
        answer = None if backend is None else question.kernel(stack, out, backend)
        answers[question] = question.observe(stack, result, out, cast) if answer is None else answer
    return answers


def copied(
    job: Job, stack: Stack, spoilt: Callable[[Array], Array], onto: Array | None = None
) -> tuple[Array, Answers]:
    """Copy one block; as for `merged`.

    A tensor of numbers is read from the source it is taken from alone; any other is also compared with the rest.

    Args:
        job: one without a method.
        stack: the block.
        spoilt: which of these numbers [n] make the output worthless, bool [n].
        onto: [n], what is taken in the base's place.
    """
    if job.tensor.dtype not in MERGEABLE:
        ground = {"base": stack.base, "onto": onto}
        taken = ground.get(job.taken_from)
        taken = stack.agents[stack.names.index(job.taken_from)] if taken is None else taken
        return taken, {Copied(): Copied().observe(stack)}
    stored = stack.base
    if stored.dtype != DTYPES[job.cast.dtype]:
        with np.errstate(all="ignore"):
            stored = job.cast.apply(as_float32(stack.base), job.tensor.name, stack.block.start)
    return stored, {Rounding(): _copied_counts(stack.base, stored, len(stack.names), spoilt(stack.base))}


def _copied_counts(values: Array, stored: Array, agents: int, spoilt: Array) -> RoundingCounts:
    """NaN, inf and overflow can go wrong in a copy; no agent's changes are at stake."""
    with np.errstate(all="ignore"):
        overflow = int((np.isinf(stored) & np.isfinite(values)).sum())
    return replace(RoundingCounts.zero(agents), overflow=overflow, non_finite=int(spoilt.sum()))
