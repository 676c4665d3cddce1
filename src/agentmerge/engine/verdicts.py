"""What only the data can show: NaN, inf, overflow, unchanged agents, the wrong base, an untied head, changed data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.alike.heads import untied
from agentmerge.errors import DataError, Note, RecipeError, SourceError, Where, role_of
from agentmerge.methods.base import MergeMethod
from agentmerge.survey.common import Common
from agentmerge.survey.integrity import Integrity, IntegrityCounts
from agentmerge.survey.restored import Restored
from agentmerge.survey.rounding import RoundingCounts
from agentmerge.survey.ties import HeadDiffers
from agentmerge.tensors import LEAF, Block, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.plan import Job, Plan
    from agentmerge.sources.source import Source
    from agentmerge.survey.statistic import Survey

DENSE = 0.95
"""When every agent changed at least this fraction, the base is probably another one."""
STEP = 512 * LEAF
"""Elements that are counted at a time for a message."""


def check_block(plan: Plan, job: Job, answers: Answers) -> None:
    """Raise DataError as soon as one block shows numbers that can't be merged or stored."""
    if answers.get(HeadDiffers()):
        embedding, head = job.rows
        raise untied(plan.sources[head.source], embedding.tensor.name, head.tensor.name)
    found = answers.get(Integrity())
    legal = sum(answers.get(Common(), (0, 0)))
    if isinstance(found, IntegrityCounts) and (found.nan + found.inf > legal).any():
        bad = (found.nan + found.inf > legal).nonzero()[0]
        names = [("base", *plan.names)[i] for i in bad]
        raise _non_finite(plan, job, [name for name in names if name not in job.absent])
    for answer in answers.values():
        if not isinstance(answer, RoundingCounts):
            continue
        if answer.non_finite and job.method is None:
            raise _non_finite(plan, job, [job.taken_from])
        if answer.non_finite and job.onto is not None and (error := _non_finite_ground(plan, job)) is not None:
            raise error
        if answer.overflow or answer.non_finite:
            raise _overflow(job, answer)


def restored_of(plan: Plan, survey: Survey) -> dict[str, int]:
    """Elements that differ from the base by storage alone, of every agent that can have such."""
    if not survey.knows(Restored()):
        return {}
    found: tuple[int, ...] = survey.total(Restored())
    counts = dict(zip(plan.names, found, strict=True))
    return {name: counts[name] for name in plan.rounding}


def check_agents(plan: Plan, survey: Survey) -> list[Note]:
    """Judge the whole overlap.

    Args:
        plan: names and what is allowed.
        survey: holds the answers over all merged elements.

    Raises:
        DataError: an agent changed nothing, and that is not allowed.
    """
    counts, restored = survey.total(plan.recipe.method.overlap), restored_of(plan, survey)
    notes = [_rounding_note(plan, name, count, counts.elements) for name, count in restored.items() if count]
    for name, changed, different in zip(plan.names, counts.changed, counts.different, strict=True):
        if changed == 0 and counts.elements and name not in plan.idle:
            found = _unchanged(plan, name, bool(restored.get(name)), bool(different))
            source = plan.sources[name]
            text, where = f"agent '{name}' ({source.text}) {found}", source.where
            if plan.recipe.inputs.unchanged == "error":
                raise DataError(
                    text,
                    expected="changes",
                    todo="Check that it is the trained checkpoint, or set inputs.unchanged: allow (--unchanged allow) "
                    "to go on; it then takes no part.",
                    where=where,
                )
            notes.append(Note(f"{text}; it takes no part", where=where))
    if counts.elements and min(counts.density) >= DENSE:
        densities = ", ".join(f"{n} {d:.1%}" for n, d in zip(plan.names, counts.density, strict=True))
        wide = any(job.tensor.dtype in ("F32", "F64") for job in plan.merged)
        hint = " If the agents were trained in bfloat16, give the base in bfloat16." if wide else ""
        notes.append(Note(f"every agent changed nearly every element ({densities}):", f"is this the right base?{hint}"))
    return notes


def _unchanged(plan: Plan, name: str, restored: bool, different: bool) -> str:
    """What is to be said of an agent that changed nothing."""
    if different:
        return "changed no element beyond the threshold"
    if restored:
        return "is identical to the base but for rounding"
    wide = any(row.tensor.dtype == "F64" for job in plan.merged for row in job.rows if row.source in ("base", name))
    return f"is identical to the base{' in float32, in which everything is calculated' if wide else ''}"


def idle_notes(plan: Plan) -> list[Note]:
    """What is told of agents that take part in no merged tensor, which the headers and the recipe show.

    Raises:
        RecipeError: one of them gives no copied tensor either, and agents without a change are not allowed.
    """
    notes = []
    for name in plan.idle:
        where, gives = plan.sources[name].where, any(job.taken_from == name for job in plan.jobs)
        text = f"agent '{name}' takes part in no merged tensor: rules skip it or copy the tensor, or it lacks them"
        if plan.recipe.inputs.unchanged == "error" and not gives:
            todo = "Leave the agent out, or change the rules; inputs.unchanged: allow (--unchanged allow) goes on."
            raise RecipeError(text, expected="a part in the merge", todo=todo, where=where)
        notes.append(Note(f"{text}{'; it gives the copied ones' if gives else ''}", where=where))
    return notes


def _rounding_note(plan: Plan, name: str, count: int, elements: int) -> Note:
    rows = [row for job in plan.merged for row in job.rows if row.source == name and row.rounds]
    source = plan.sources[name]
    dtypes = {part.dtype for row in rows for part in source.weights.stored(row.tensor.name)}
    return Note(
        f"agent '{name}' stores its numbers more coarsely than the base (in {', '.join(sorted(dtypes))}): {count:,} of "
        f"{elements:,} elements that differ by nothing else count as unchanged",
        where=source.where,
    )


def check_unchanged(plan: Plan, then: Survey, now: Survey) -> None:
    """Raise SourceError where the last pass read other bytes than a fold did, whatever sizes and times say.

    Args:
        plan: the sources.
        then: the answers of the folds; those of no fold tell nothing.
        now: the answers of the last pass, those of earlier runs of it included.
    """
    if not then.knows(Integrity()):
        return
    bad = (then.total(Integrity()).fingerprint != now.total(Integrity()).fingerprint).nonzero()[0]
    changed = [("base", *plan.names)[i] for i in bad]
    if "base" in changed:  # which then also stands for an agent where that lacks a tensor
        absent = {name for job in plan.merged for name in job.absent}
        changed = [name for name in changed if name not in absent]
    if changed:
        roles = ", ".join(str(role_of(name)) for name in changed)
        raise SourceError(
            f"the data of {roles} changed while it was merged, although size and time are the same",
            todo="Wait until nothing writes there, then run the same command again: it starts over.",
            where=plan.sources[changed[0]].where,
        )


def same_everywhere(nan: int, inf: int) -> list[Note]:
    """A note of elements that are not finite and were copied, as every source has the same there."""
    if not nan + inf:
        return []
    found = f"{nan} NaN and {inf} inf"
    return [Note(f"{found} are the same in every source and are copied, not merged (masks are made so)")]


def _non_finite(plan: Plan, job: Job, names: list[str]) -> DataError:
    lines = [_non_finite_line(name, plan.sources[name], job) for name in names]
    return DataError(
        "\n".join(lines) + "\n",
        expected="finite numbers, or the same NaN and inf in every source",
        todo="Use an earlier checkpoint of that training run. A mask or another buffer that is no weight can be taken "
        f"from the base by a rule: {{tensors: {job.tensor.name}, take: base}}.",
        where=replace(plan.sources[names[0]].where, tensor=job.tensor.name),
    )


def _non_finite_ground(plan: Plan, job: Job) -> DataError | None:
    """What is said where the checkpoint that the merge is put onto is what is not finite; None where it is."""
    nan, inf = _broken(plan.sources["onto"], job)
    return _non_finite(plan, job, ["onto"]) if nan + inf else None


def _non_finite_line(name: str, source: Source, job: Job) -> str:
    """Count the whole tensor, so that the message does not depend on where the first block ended."""
    nan, inf = _broken(source, job)
    elements = source.specs[job.tensor.name].elements
    return f"{job.tensor.name}: {role_of(name)} ({source.text}) has {nan} NaN and {inf} inf of {elements} elements."


def _broken(source: Source, job: Job) -> tuple[int, int]:
    """NaN and inf of a source's whole tensor."""
    nan = inf = 0
    spec = source.specs[job.tensor.name]
    for start in range(0, spec.elements, STEP):
        values = as_float32(source.weights.read(Block(spec, start, min(start + STEP, spec.elements))))
        nan += int(np.isnan(values).sum())
        inf += int(np.isinf(values).sum())
    return nan, inf


def _overflow(job: Job, counts: RoundingCounts) -> DataError:
    where = Where(tensor=job.tensor.name)
    if counts.overflow:
        return DataError(
            f"{job.tensor.name}: at least {counts.overflow} merged elements are too large for {job.cast.dtype} and "
            "would become inf",
            todo="Choose a wider output: output.dtype bfloat16 or float32 (--dtype).",
            where=where,
        )
    return DataError(
        f"{job.tensor.name}: at least {counts.non_finite} merged elements are not finite in float32 although every "
        "input is",
        todo=_lower(job.method),
        where=where,
    )


def _lower(method: MergeMethod | None) -> str:
    """What makes a merge's numbers smaller: the largest setting of the method or of one inside it, and the weights."""
    value, path = max(_numbers(method), default=(1.0, ""))
    return f"Lower {f'{path} ({value:g}) or ' if value > 1 else ''}the agents' weights."


def _numbers(method: MergeMethod | None, path: str = "method") -> Iterator[tuple[float, str]]:
    for field, value in method or ():
        if isinstance(value, MergeMethod):
            yield from _numbers(value, f"{path}.{field}")
        elif isinstance(value, float):
            yield abs(value), f"{path}.{field}"
