"""The whole way: fold until the method asks nothing more, then map. Knows no method and no runner by name."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__
from agentmerge.engine.checks import check_agents
from agentmerge.engine.cost import check_cost
from agentmerge.engine.local import LocalRunner
from agentmerge.engine.output import output_files
from agentmerge.engine.plan import Plan
from agentmerge.engine.recording import found_of, profile_of, record_of, summary_of
from agentmerge.engine.runner import Runner, Target
from agentmerge.engine.saved import adopt_survey, check_fingerprint
from agentmerge.engine.tied import check_ties
from agentmerge.engine.warming import Warming
from agentmerge.errors import DataError, SourceError, SurveyError
from agentmerge.files import reading
from agentmerge.files.writer import Writer
from agentmerge.kernels import cpu
from agentmerge.progress import Silent, Watch
from agentmerge.record import RECORD, MergeRecord, ProbeRecord
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.retention import RegionRetention
from agentmerge.survey.statistic import Survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.recipe import Recipe
    from agentmerge.survey.statistic import Statistic


def merge(
    recipe: Recipe,
    out: Path,
    *,
    overwrite: bool = False,
    full: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> MergeRecord:
    """Merge the agents of a recipe into one checkpoint at `out`.

    A killed call resumes when it is made again; the result is the same to the byte.

    Args:
        recipe: what to merge and how.
        out: a new or empty folder; it appears when everything is written.
        overwrite: replace a folder that is there, once the new one is whole.
        full: measure all that a report shows; the bytes of the model are the same.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Returns:
        The record that also lies in `out` as merge_record.json.

    Raises:
        MergeError: whatever the user can mend; `out` is as it was.
    """
    return merge_all({out: recipe}, overwrite=overwrite, full=full, runner=runner, watch=watch)[0]


def merge_all(
    recipes: Mapping[Path, Recipe],
    *,
    overwrite: bool = False,
    full: bool = False,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> list[MergeRecord]:
    """Merge the same agents in several ways, reading them once.

    Args:
        recipes: by output folder; they differ in their methods' settings alone.
        overwrite: as for `merge`.
        full: as for `merge`.
        runner: as for `merge`.
        watch: as for `merge`.

    Returns:
        A record per recipe, in their order.

    Raises:
        MergeError: whatever the user can mend; no output appears before all are whole.
    """
    kernels = _warming("count", *_loops(recipes.values()), *_FULL[full])
    runner, watch, started = runner or LocalRunner(), watch or Silent(), time.time()
    first, *others = recipes.values()
    with Plan(first) as plan, ExitStack() as opened:
        plans = dict(zip(recipes, [plan, *(plan.varied(recipe) for recipe in others)], strict=True))
        for out, one in plans.items():
            one.check_output(out)
            check_cost(one)
            one.further = (RegionRetention(one.recipe.method.overlap.threshold),) if full else ()
        made = {out: record for out, one in plans.items() if others and (record := _finished(out, one))}
        todo = {out: one for out, one in plans.items() if out not in made}
        files = {out: output_files(one) for out, one in todo.items()}
        known = adopt_survey(plan)
        targets = _targets(todo, opened, overwrite)
        kernels.wait(watch)
        try:
            records = _merged(list(targets.values()), known, full, runner, watch, started) if targets else []
            for (out, target), record in zip(targets.items(), records, strict=True):
                target.writer.finish(files[out](record))
                made[out] = record
        except (DataError, SurveyError, SourceError) as error:
            for target in targets.values():
                target.writer.refuse(str(error))
            raise
    return [made[out] for out in recipes]


def probe(
    recipe: Recipe, *, full: bool = False, runner: Runner | None = None, watch: Watch | None = None
) -> ProbeRecord:
    """See what the agents of a recipe changed, without writing a model: the first half of `merge`.

    Args:
        recipe: what to look at; the method decides which scales are shown.
        full: measure all that a report shows, in the same pass; about twice the time.
        runner: who does the work; threads of this process by default.
        watch: is told of the progress.

    Raises:
        MergeError: whatever the user can mend.
    """
    kernels = _warming("count", *_FULL[full])
    runner, watch, started = runner or LocalRunner(), watch or Silent(), time.time()
    with Plan(recipe) as plan:
        survey = Survey()
        check_ties(plan.prepared.ties)
        asked = tuple(dict.fromkeys([*_always([plan], full), *_asked([plan], survey)]))
        kernels.wait(watch)
        survey.update(runner.fold(plan, asked, "probe", None, watch))
        plan.restat()
        return ProbeRecord(
            method=recipe.method.model_dump(mode="json"),
            sources=plan.identities(),
            scope=plan.scope_id,
            survey=summary_of(plan, survey),
            findings=found_of(plan, survey),
            answers=survey.encode(asked),
            warnings=[*plan.warnings, *check_agents(plan, survey.total(recipe.method.overlap))],
            timing={"seconds": round(time.time() - started, 3), "bytes_read": plan.input_bytes},
        )


def _targets(todo: Mapping[Path, Plan], opened: ExitStack, overwrite: bool) -> dict[Path, Target]:
    """A writer for every output, or none: where one is refused, the space that others reserved is given back."""
    targets: dict[Path, Target] = {}
    try:
        for out, plan in todo.items():
            writer = Writer(out, plan.layout, _identity(plan), overwrite=overwrite)
            targets[out] = Target(plan, opened.enter_context(writer))
    except BaseException:
        for target in targets.values():
            target.writer.abandon()
        raise
    return targets


_FULL = {True: ("full",), False: ()}


def _warming(*loops: str) -> Warming:
    """Compile these loops, and the one that reads."""

    def compile_all() -> None:
        cpu.load(*loops)
        reading.load()

    return Warming(compile_all)


def _loops(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """The loops that the methods' kernels name."""
    return tuple(dict.fromkeys(loop for recipe in recipes for loop in recipe.method.loops))


def _merged(
    targets: Sequence[Target], known: Survey, full: bool, runner: Runner, watch: Watch, started: float
) -> list[MergeRecord]:
    plan, plans = targets[0].plan, [target.plan for target in targets]
    check_ties(plan.prepared.ties)
    survey, folds = Survey(), 0
    survey.update(known)
    while asked := _asked(plans, survey):
        statistics = tuple(dict.fromkeys([*(_always(plans, full) if folds == 0 else ()), *asked]))
        survey.update(runner.fold(plan, statistics, f"fold {folds}", targets[0].writer, watch))
        folds += 1
    warnings = _check_agents(plans, survey) if folds else []
    folded = time.time()
    missing = tuple(s for s in _always(plans, full) if not survey.knows(s))
    afters = runner.map(targets, survey, missing, watch)
    survey.update(afters[0])
    warnings = warnings or _check_agents(plans, survey)
    check_fingerprint(plan, survey.total(Integrity()))
    plan.restat()
    timing = {"fold_seconds": round(folded - started, 3), "map_seconds": round(time.time() - folded, 3)}
    timing |= {"folds": folds, "outputs": len(targets), "bytes_read": plan.input_bytes}
    return [
        record_of(target.plan, survey.joined(after), after, warnings, timing)
        for target, after in zip(targets, afters, strict=True)
    ]


def _check_agents(plans: Sequence[Plan], survey: Survey) -> list[str]:
    found = [check_agents(plan, survey.total(plan.recipe.method.overlap)) for plan in plans]
    return list(dict.fromkeys(warning for warnings in found for warning in warnings))


def _always(plans: Sequence[Plan], full: bool) -> tuple[Statistic[Any], ...]:
    """What every record reports, whatever the methods ask, and what a report shows."""
    found = dict.fromkeys(plan.recipe.method.overlap for plan in plans)
    return (*found, Integrity(), *(dict.fromkeys(map(profile_of, plans)) if full else ()))


def _asked(plans: Sequence[Plan], survey: Survey) -> tuple[Statistic[Any], ...]:
    methods = dict.fromkeys(method for plan in plans for method in plan.methods)
    return tuple(dict.fromkeys(statistic for method in methods for statistic in method.ask(survey)))


def _finished(out: Path, plan: Plan) -> MergeRecord | None:
    """The record of an output that an earlier run of the same sweep finished before it was killed."""
    try:
        if not (out / RECORD).exists():
            return None
    except OSError:  # the writer tells it
        return None
    record = MergeRecord.load(out)
    recipe = {key: value for key, value in record.recipe.items() if key != "run"}
    then = {"agentmerge": record.versions.get("agentmerge"), "recipe": recipe, "sources": record.sources}
    return record if then == _identity(plan) else None


def _identity(plan: Plan) -> dict[str, Any]:
    """What the output's bytes depend on; how the work is done is not part of it."""
    recipe = {key: value for key, value in plan.recipe.dump().items() if key != "run"}
    return {"agentmerge": __version__, "recipe": recipe, "sources": plan.identities()}
