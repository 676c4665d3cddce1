"""Put what was done into a record."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__
from agentmerge.analysis.findings import findings_of
from agentmerge.engine.passes import of_a_report
from agentmerge.engine.verdicts import restored_of
from agentmerge.errors import Note, shortened
from agentmerge.record import AgentRetention, AgentRounding, CopiedTensor, MergeRecord, SurveySummary, Tensors
from agentmerge.sidefiles.output import output_facts
from agentmerge.survey.copied import Copied
from agentmerge.survey.full.question import Profile
from agentmerge.survey.retention import RegionRetention, region_retentions
from agentmerge.survey.rounding import Rounding, RoundingCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.analysis.rows import Findings
    from agentmerge.engine.plan import Plan
    from agentmerge.survey.statistic import Survey


def summary_of(plan: Plan, survey: Survey) -> SurveySummary:
    """Counts and scales in words."""
    method = plan.recipe.method
    counts, scales = survey.total(method.overlap), method.told(survey, plan.names).scales
    return SurveySummary.of(plan.names, counts, scales, method.overlap.threshold, restored_of(plan, survey))


def findings_of_survey(plan: Plan, survey: Survey) -> Findings | None:
    """What a full probe found; None where none was asked for."""
    for question in of_a_report(plan):
        if isinstance(question, Profile) and survey.knows(question):
            return findings_of(plan.names, plan.sources["base"].specs, survey, question, plan.recipe.method)
    return None


def record_of(plan: Plan, survey: Survey, after: Survey, notes: Sequence[Note], timing: dict[str, Any]) -> MergeRecord:
    """Everything that was done.

    Args:
        plan: what was to be done.
        survey: every answer about the inputs.
        after: every answer about what became of them.
        notes: what the data showed.
        timing: seconds and bytes.
    """
    overlap, method = survey.total(plan.recipe.method.overlap), plan.recipe.method
    counts = _all_rounding(plan, after)
    told = method.told(survey, plan.names)
    scales = told.scales
    rescaled = [
        plan.weights[t] != 1 or scales is None or scales[t] != 1 or len(plan.methods) > 1
        for t in range(len(plan.names))
    ]
    return MergeRecord(
        recipe=plan.recipe.dump(),
        versions=dict(_versions()),
        sources=plan.identities(),
        survey=summary_of(plan, survey),
        rounding={
            name: AgentRounding.of(t, overlap, counts, rescaled=rescaled[t]) for t, name in enumerate(plan.names)
        },
        learned=dict(told.learned),
        retention=_retention(plan, after),
        findings=findings_of_survey(plan, survey),
        tensors=_tensors(plan, after),
        output=output_facts(plan.layout, plan.recipe.output.rounding),
        warnings=list(map(str, (*plan.notes, *notes, *_copied_notes(plan, after), *told.notes))),
        timing=timing,
    )


@cache
def _versions() -> dict[str, str]:
    """Of what may matter to the bytes, as this process loaded it."""
    packages = {name: version(name) for name in ("numpy", "numba", "ml-dtypes")}
    return {"agentmerge": __version__, "python": python_version(), **packages}


def _all_rounding(plan: Plan, after: Survey) -> RoundingCounts:
    """The rounding of every merged tensor, whatever threshold its rule gave it."""
    rules = [Rounding(threshold) for threshold in dict.fromkeys(method.overlap.threshold for method in plan.methods)]
    total = RoundingCounts.zero(len(plan.names))
    for rule in rules:
        if after.knows(rule):
            total += after.total(rule)
    return total


def _retention(plan: Plan, after: Survey) -> dict[str, AgentRetention] | None:
    asked = RegionRetention(plan.recipe.method.overlap.threshold)
    if not after.knows(asked):
        return None
    found = zip(plan.names, region_retentions(after.total(asked)), strict=True)
    return {name: AgentRetention(unique=u, shared=s, changed=c) for name, (u, s, c) in found}


def _tensors(plan: Plan, after: Survey) -> Tensors:
    """What became of every tensor, and which of them not every agent has."""
    alignment = plan.family.alignment
    assert alignment is not None, "the chain ends with it"
    lacking = {n: [t for t, agents in alignment.lacking.items() if n in agents] for n in plan.names}
    return Tensors(
        merged=len(plan.merged),
        copied=_copied(plan, after),
        missing={name: tensors for name, tensors in lacking.items() if tensors},
        left_out={name: list(tensors) for name, tensors in alignment.ignored.items()},
    )


def _copied(plan: Plan, after: Survey) -> list[CopiedTensor]:
    return [
        CopiedTensor(name=job.tensor.name, reason=job.reason + _differing(plan, job.tensor.name, after))
        for job in plan.jobs
        if job.method is None
    ]


def _copied_notes(plan: Plan, after: Survey) -> list[Note]:
    names = [job.tensor.name for job in plan.jobs if job.method is None]
    differing = [name for name in names if _differing(plan, name, after)]
    found = f"copied although agents differ in them (tensors.copied tells which): {shortened(differing)}"
    return [Note(found)] if differing else []


def _differing(plan: Plan, tensor: str, after: Survey) -> str:
    try:
        counts = after.at(tensor, Copied())
    except KeyError:
        return ""
    found = [f"'{name}' ({count} elements)" for name, count in zip(plan.names, counts, strict=True) if count]
    return f"; it differs in {', '.join(found)}" if found else ""
