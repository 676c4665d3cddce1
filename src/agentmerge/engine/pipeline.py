"""The whole way: fold until the method asks nothing more, then map. Knows no method and no runner by name."""

from __future__ import annotations

import time
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__
from agentmerge.checkpoint.writer import Writer
from agentmerge.engine.checks import check_agents
from agentmerge.engine.cost import check_cost
from agentmerge.engine.local import LocalRunner
from agentmerge.engine.output import output_facts, output_files
from agentmerge.engine.plan import Plan
from agentmerge.engine.runner import Runner, Silent, Watch
from agentmerge.engine.saved import adopt_survey, check_fingerprint
from agentmerge.engine.tied import check_tied
from agentmerge.errors import DataError, SourceError, SurveyError, shortened
from agentmerge.kernels import cpu
from agentmerge.record import AgentRounding, CopiedTensor, MergeRecord, ProbeRecord, SurveySummary, Tensors
from agentmerge.survey.copied import Copied
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.rounding import Rounding, RoundingCounts
from agentmerge.survey.statistic import Survey

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.recipe import Recipe
    from agentmerge.survey.statistic import Statistic


def merge(
    recipe: Recipe,
    out: Path,
    *,
    overwrite: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> MergeRecord:
    """Merge the agents of a recipe into one checkpoint at `out`.

    A killed call resumes when it is made again; the result is the same to the byte.

    Args:
        recipe: what to merge and how.
        out: a new or empty folder; it appears when everything is written.
        overwrite: replace a folder that is there, once the new one is whole.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Returns:
        The record that also lies in `out` as merge_record.json.

    Raises:
        MergeError: whatever the user can mend; `out` is as it was.
    """
    cpu.warm_up()
    runner, watch, started = runner or LocalRunner(), watch or Silent(), time.time()
    with Plan(recipe) as plan:
        plan.check_output(out)
        check_cost(plan)
        files = output_files(plan)
        known = adopt_survey(plan)
        with Writer(out, plan.layout, _identity(plan), overwrite=overwrite) as writer:
            try:
                record = _merged(plan, known, writer, runner, watch, started)
                writer.finish(files(record))
            except (DataError, SurveyError, SourceError) as error:
                writer.refuse(str(error))
                raise
    return record


def probe(recipe: Recipe, *, runner: Runner | None = None, watch: Watch | None = None) -> ProbeRecord:
    """See what the agents of a recipe changed, without writing a model: the first half of `merge`.

    Args:
        recipe: what to look at; the method decides which scales are shown.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Raises:
        MergeError: whatever the user can mend.
    """
    cpu.warm_up()
    runner, watch, started = runner or LocalRunner(), watch or Silent(), time.time()
    with Plan(recipe) as plan:
        survey = Survey()
        _check_tied(plan)
        asked = tuple(dict.fromkeys([*_always(plan), *_asked(plan, survey)]))
        survey.update(runner.fold(plan, asked, "probe", None, watch))
        plan.restat()
        return ProbeRecord(
            method=recipe.method.model_dump(mode="json"),
            sources=plan.identities(),
            scope=plan.scope_id,
            survey=_summary(plan, survey),
            answers=survey.encode(asked),
            warnings=[*plan.warnings, *check_agents(plan, survey.total(recipe.method.overlap))],
            timing={"seconds": round(time.time() - started, 3), "bytes_read": plan.input_bytes},
        )


def _merged(plan: Plan, known: Survey, writer: Writer, runner: Runner, watch: Watch, started: float) -> MergeRecord:
    _check_tied(plan)
    survey, folds = Survey(), 0
    survey.update(known)
    while asked := _asked(plan, survey):
        first = _always(plan) if folds == 0 else ()
        statistics = tuple(dict.fromkeys([*first, *asked]))
        survey.update(runner.fold(plan, statistics, f"fold {folds}", writer, watch))
        folds += 1
    warnings = check_agents(plan, survey.total(plan.recipe.method.overlap)) if folds else []
    folded = time.time()
    missing = tuple(s for s in _always(plan) if not survey.knows(s))
    after = runner.map(plan, survey, missing, writer, watch)
    survey.update(after)
    if not folds:
        warnings = check_agents(plan, survey.total(plan.recipe.method.overlap))
    check_fingerprint(plan, survey.total(Integrity()))
    plan.restat()
    timing = {"fold_seconds": round(folded - started, 3), "map_seconds": round(time.time() - folded, 3)}
    return _record(plan, survey, after, warnings, {**timing, "folds": folds, "bytes_read": plan.input_bytes})


def _always(plan: Plan) -> tuple[Statistic[Any], ...]:
    """What every record reports, whatever the method asks."""
    return (plan.recipe.method.overlap, Integrity())


def _asked(plan: Plan, survey: Survey) -> tuple[Statistic[Any], ...]:
    return tuple(dict.fromkeys(statistic for method in plan.methods for statistic in method.ask(survey)))


def _check_tied(plan: Plan) -> None:
    if plan.tied is not None:
        check_tied(plan.tied, {"base": plan.base, **plan.agents})


def _summary(plan: Plan, survey: Survey) -> SurveySummary:
    method = plan.recipe.method
    counts = survey.total(method.overlap)
    return SurveySummary.of(plan.names, counts, method.agent_scales(survey), method.overlap.threshold)


def _identity(plan: Plan) -> dict[str, Any]:
    """What the output's bytes depend on; how the work is done is not part of it."""
    recipe = {key: value for key, value in plan.recipe.dump().items() if key != "run"}
    return {"agentmerge": __version__, "recipe": recipe, "sources": plan.identities()}


def _record(plan: Plan, survey: Survey, after: Survey, warnings: list[str], timing: dict[str, Any]) -> MergeRecord:
    overlap, method = survey.total(plan.recipe.method.overlap), plan.recipe.method
    counts = _all_rounding(plan, after)
    scales = method.agent_scales(survey)
    rescaled = [
        plan.weights[t] != 1 or scales is None or scales[t] != 1 or len(plan.methods) > 1
        for t in range(len(plan.names))
    ]
    return MergeRecord(
        recipe=plan.recipe.dump(),
        versions={"agentmerge": __version__, "python": python_version()}
        | {name: version(name) for name in ("numpy", "numba", "ml-dtypes")},
        sources=plan.identities(),
        survey=_summary(plan, survey),
        rounding={
            name: AgentRounding.of(t, overlap, counts, rescaled=rescaled[t]) for t, name in enumerate(plan.names)
        },
        learned=method.learned(survey, plan.names),
        tensors=Tensors(merged=len(plan.merged), copied=_copied(plan, after)),
        output=output_facts(plan),
        warnings=[*plan.warnings, *warnings, *_copied_warnings(plan, after), *method.advice(survey)],
        timing=timing,
    )


def _all_rounding(plan: Plan, after: Survey) -> RoundingCounts:
    """The rounding of every merged tensor, whatever threshold its rule gave it."""
    rules = [Rounding(threshold) for threshold in dict.fromkeys(method.overlap.threshold for method in plan.methods)]
    total = RoundingCounts.zero(len(plan.names))
    for rule in rules:
        if after.knows(rule):
            total = rule.combine(total, after.total(rule))
    return total


def _copied(plan: Plan, after: Survey) -> list[CopiedTensor]:
    return [
        CopiedTensor(name=task.tensor.name, reason=task.reason + _differing(plan, task.tensor.name, after))
        for task in plan.tasks
        if task.method is None
    ]


def _copied_warnings(plan: Plan, after: Survey) -> list[str]:
    names = [task.tensor.name for task in plan.tasks if task.method is None]
    differing = [name for name in names if _differing(plan, name, after)]
    found = f"copied although agents differ in them (tensors.copied tells which): {shortened(differing)}"
    return [found] if differing else []


def _differing(plan: Plan, tensor: str, after: Survey) -> str:
    try:
        counts = after.at(tensor, Copied())
    except KeyError:
        return ""
    found = [f"'{name}' ({count} elements)" for name, count in zip(plan.names, counts, strict=True) if count]
    return f"; it differs in {', '.join(found)}" if found else ""
