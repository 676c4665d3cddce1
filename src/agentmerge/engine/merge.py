"""A merge is a sequence of passes over the same stacks; each answers what is still asked, and the last one also writes.

A probe is its first pass. Knows no method and no runner by name.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__
from agentmerge.engine.compiling import Compiling, kernels_for
from agentmerge.engine.decisions import varied
from agentmerge.engine.estimate import check_cost, drafts_of, input_bytes
from agentmerge.engine.local import LocalRunner
from agentmerge.engine.packed import check_packed
from agentmerge.engine.passes import Output, fold, last, nothing, probe
from agentmerge.engine.preflight import planned
from agentmerge.engine.reads import check_output, refuse_read
from agentmerge.engine.records import findings_of_survey, record_of, summary_of
from agentmerge.engine.saved_survey import adopt_survey, check_fingerprint
from agentmerge.engine.verdicts import check_agents, check_unchanged, same_everywhere
from agentmerge.errors import DataError, OutputError, SourceError, SurveyError
from agentmerge.files.destination import Destination
from agentmerge.files.journal import JOURNAL, work_of
from agentmerge.files.staging import put_right
from agentmerge.files.writer import Writer
from agentmerge.progress import Silent, Watch
from agentmerge.record import RECORD, MergeRecord, ProbeRecord
from agentmerge.sidefiles.output import output_files
from agentmerge.survey.common import Common
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.statistic import Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.engine.passes import Questions
    from agentmerge.engine.plan import Plan
    from agentmerge.engine.runner import Runner
    from agentmerge.errors import Note
    from agentmerge.recipe import Recipe
    from agentmerge.survey.statistic import Kept

RUNNERS: Mapping[str, Callable[[], Runner]] = {"local": LocalRunner}
"""By the names that `run.runner` has for them."""


def merge_all(
    recipes: Mapping[Path, Recipe],
    *,
    overwrite: bool = False,
    again: bool = False,
    beside: Questions = nothing,
    runner: Runner | None = None,
    watch: Watch | None = None,
) -> list[MergeRecord]:
    """Merge the same agents in several ways, reading them once; see `agentmerge.merge`.

    Args:
        recipes: by output folder; they differ in their methods' settings alone.
        overwrite: replace a folder that is there, once the new one is whole.
        again: one folder may hold what an earlier call of the same recipe finished, which is taken as it is; of
            several they always may.
        beside: what is asked beside what the methods ask, for a report.
        runner: who does the work; None takes the first recipe's.
        watch: is told of the progress.

    Returns:
        A record per recipe, in their order.

    Raises:
        MergeError: whatever the user can mend; no output appears before all are whole.
    """
    watch, started = watch or Silent(), time.time()
    first, *others = recipes.values()
    methods, moving = [recipe.method for recipe in recipes.values()], first.onto is not None
    loading = kernels_for(methods, full=beside is not nothing, more=("onto",) if moving else ())
    pins = {} if overwrite else pins_of(recipes)
    again = again or bool(others)
    seen = partial(_check_out, next(iter(recipes)), overwrite=overwrite, again=again)
    with Compiling(*loading) as kernels, planned(first, watch, pins, seen) as plan, ExitStack() as opened:
        plans = dict(zip(recipes, [plan, *(varied(plan, recipe) for recipe in others)], strict=True))
        for out, one in plans.items():
            refuse_read(one, out)
            put_right(out)
            check_cost(one)
        made = {out: record for out, one in plans.items() if again and (record := finished(out, one))}
        if not others and beside is not nothing:  # what a report needs is measured while merging
            made = {out: record for out, record in made.items() if record.findings is not None}
        todo = {out: one for out, one in plans.items() if out not in made}
        for out, one in todo.items():
            check_output(one, out, overwrite=overwrite)
        kernels.begin()
        files = {out: side_files_of(one) for out, one in todo.items()}
        known = adopt_survey(plan)
        writers = _writers(todo, opened, overwrite)
        outputs = [Output(todo[out], writer) for out, writer in writers.items()]
        kernels.wait(watch)
        try:
            kept = next((writer.drafts for writer in writers.values()), None)
            merging = _Merging(outputs, kept, beside, runner or RUNNERS[first.run.runner](), watch, started)
            records = merging.run(known) if outputs else []
            for (out, writer), record in zip(writers.items(), records, strict=True):
                writer.finish({**files[out], RECORD: record.dump()})
                made[out] = record
        except (DataError, SurveyError, SourceError) as error:
            for writer in writers.values():
                writer.refuse(str(error))
            raise
    return [made[out] for out in recipes]


class _Merging:
    """The passes of one merge, or of several that share their sources."""

    def __init__(
        self,
        outputs: Sequence[Output],
        kept: Kept | None,
        beside: Questions,
        runner: Runner,
        watch: Watch,
        started: float,
    ) -> None:
        self._outputs, self._kept, self._beside, self._runner, self._watch = outputs, kept, beside, runner, watch
        self._plans = [output.plan for output in outputs]
        self._started = started

    def run(self, known: Survey) -> list[MergeRecord]:
        """Pass after pass: fold until the methods ask no more, then merge.

        Args:
            known: answers of a saved survey.
        """
        plan, survey, folds = self._plans[0], Survey(self._kept), 0
        survey.update(known)
        while (reading := fold(self._plans, survey, folds, self._outputs[0].sink, self._beside)) is not None:
            survey.update(*self._runner.run(plan, reading, survey, self._watch))
            folds += 1
        notes = self._judged(survey) if folds else []
        folded = time.time()
        writing = last(self._outputs, survey, folds, self._beside)
        after = self._runner.run(plan, writing, survey, self._watch)
        for found in after:
            check_unchanged(plan, survey, found)
        survey.update(after[0])
        notes = notes or self._judged(survey)
        check_packed(plan, survey)
        check_fingerprint(plan, survey.total(Integrity()))
        plan.restat()
        timing = {"fold_seconds": round(folded - self._started, 3), "map_seconds": round(time.time() - folded, 3)}
        timing |= {"folds": folds, "outputs": len(self._outputs), "bytes_read": input_bytes(plan)}
        return [
            record_of(one, survey.joined(found), found, notes, timing)
            for one, found in zip(self._plans, after, strict=True)
        ]

    def _judged(self, survey: Survey) -> list[Note]:
        found = [check_agents(plan, survey) for plan in self._plans]
        found.append(same_everywhere(*survey.total(Common())))
        return list(dict.fromkeys(note for notes in found for note in notes))


def probe_one(
    recipe: Recipe, *, beside: Questions = nothing, runner: Runner | None = None, watch: Watch | None = None
) -> ProbeRecord:
    """See what the agents of a recipe changed, without writing a model; see `agentmerge.probe`.

    Raises:
        MergeError: whatever the user can mend.
    """
    watch, started = watch or Silent(), time.time()
    with Compiling(*kernels_for([], full=beside is not nothing)) as kernels, planned(recipe, watch) as plan:
        runner, survey = runner or RUNNERS[recipe.run.runner](), Survey()
        reading = probe(plan, survey, beside)
        kernels.wait(watch)
        survey.update(*runner.run(plan, reading, survey, watch))
        check_packed(plan, survey)
        plan.restat()
        notes = [*plan.notes, *check_agents(plan, survey), *same_everywhere(*survey.total(Common()))]
        return ProbeRecord(
            method=recipe.method.model_dump(mode="json"),
            sources=plan.identities(),
            scope=plan.scope_id,
            survey=summary_of(plan, survey),
            findings=findings_of_survey(plan, survey),
            answers=survey.encode(reading.asked),
            warnings=list(map(str, notes)),
            timing={"seconds": round(time.time() - started, 3), "bytes_read": input_bytes(plan)},
        )


def side_files_of(plan: Plan) -> dict[str, bytes]:
    """Everything beside the shards and the record, read before any weight so that a missing file is told first."""
    family, donor = plan.family, plan.family.tokenizer_from
    tokenizer = None if donor in ("base", "onto") else family.folders[donor]
    return output_files(plan.recipe, plan.layout, family.ground.folder, tokenizer, family.config_changes)


def _writers(todo: Mapping[Path, Plan], opened: ExitStack, overwrite: bool) -> dict[Path, Writer]:
    """A writer for every output, or none: where one is refused, the space that others reserved is given back."""
    writers: dict[Path, Writer] = {}
    drafts = drafts_of(todo.values())  # of all of them, in the first one's folder
    try:
        for out, plan in todo.items():
            writer = Writer(out, plan.layout, _identity(plan), overwrite=overwrite, drafts={} if writers else drafts)
            writers[out] = opened.enter_context(writer)
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    return writers


def _check_out(out: Path, plan: Plan, *, overwrite: bool, again: bool) -> None:
    """Raise OutputError where a merge can't end in `out`; a swap that was killed is put right first."""
    refuse_read(plan, out)
    put_right(out)
    check_cost(plan)
    if not (again and finished(out, plan)):
        check_output(plan, out, overwrite=overwrite)


def pins_of(outs: Iterable[Path]) -> dict[str, str]:
    """The commits of models on the hub that unfinished merges into these folders began with, by the recipe's texts."""
    pins: dict[str, str] = {}
    for out in outs:
        with suppress(OutputError):  # told later
            begun = work_of(Destination(out).folder / JOURNAL).get("sources", {})
            pins |= {source["source"]: source["commit"] for source in begun.values() if "commit" in source}
    return pins


def finished(out: Path, plan: Plan) -> MergeRecord | None:
    """The record of an output that an earlier run of the same command finished before it was killed.

    None where anything of it was changed since, as far as sizes and times of shards and the bytes of other files tell.
    """
    try:
        record = MergeRecord.load(out)
        return record if _is_of(record, plan) and _untouched(out, plan) else None
    except (OSError, SurveyError):  # the writer tells it
        return None


def _is_of(record: MergeRecord, plan: Plan) -> bool:
    recipe = {key: value for key, value in record.recipe.items() if key != "run"}
    then = {"agentmerge": record.versions.get("agentmerge"), "recipe": recipe, "sources": record.sources}
    return _untimed(then) == _untimed(_identity(plan))


def _untimed(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without the times of files whose commit on the hub is known: fetched again they are the same."""
    sources = {}
    for name, source in identity["sources"].items():
        files = [{**file, "mtime_ns": 0} if "commit" in source else file for file in source.get("files", ())]
        sources[name] = {**source, "files": files}
    return {**identity, "sources": sources}


def _untouched(out: Path, plan: Plan) -> bool:
    """Whether shards are as large as they were written, and not newer than the record, which is written last."""
    written = (out / RECORD).stat().st_mtime_ns
    for shard in plan.layout.shards:
        found = (out / shard.name).stat()
        if found.st_size != shard.size or found.st_mtime_ns > written:
            return False
    return all((out / name).read_bytes() == content for name, content in side_files_of(plan).items())


def _identity(plan: Plan) -> dict[str, Any]:
    """What the output's bytes depend on; how the work is done is not part of it."""
    recipe = {key: value for key, value in plan.recipe.dump().items() if key != "run"}
    return {"agentmerge": __version__, "recipe": recipe, "sources": plan.identities()}
