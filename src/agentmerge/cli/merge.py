"""The command `agentmerge merge`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import agentmerge
from agentmerge.api import swept
from agentmerge.cli.console import Bar, resumable, say, tell_warnings, untouched
from agentmerge.cli.options import Json, Public, Quiet, takes_recipe
from agentmerge.cli.patches import Goal, Patches, takes_goal
from agentmerge.cli.process import printing
from agentmerge.cli.recipes import parse_sweeps
from agentmerge.cli.reports import write_reports
from agentmerge.cli.sweeps import sweep_facts, sweep_plan_facts, sweep_plan_summary, sweep_summary
from agentmerge.cli.tables import merge_summary, plan_facts, plan_summary
from agentmerge.errors import MergeError, RecipeError
from agentmerge.recipe import Recipe
from agentmerge.record import RECORD

ALREADY = "Already complete: {} is this merge of these sources. --overwrite makes it anew."


@takes_recipe("onto", "keep", "inputs", "output", "seed", "run")
@takes_goal
def merge(
    goal: Goal,
    recipe: Recipe,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, from headers alone.")] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=V1,V2,...",
            help="One merge per value, into OUT/FIELD=VALUE, reading once; repeat for every combination. "
            "With --json a list of records, each with its folder in `out`.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write report.html into OUT: what the agents changed, what was kept.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME[@BRANCH]",
            help="Then put it on the Hugging Face hub, as `push` does.",
            show_default=False,
        ),
    ] = None,
    public: Public = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge agents into one checkpoint.

    A killed merge resumes when the same command is run again.
    """
    fields = parse_sweeps(sweep or ())
    patches = Patches.of(recipe, goal, several=bool(fields))
    out = patches.folder
    if push is not None:
        _check_push(recipe, push, patches, swept=bool(fields), dry_run=dry_run)
    if report and not patches.stays:
        raise RecipeError("--report: there is no --out, so that no folder stays for it", todo="Give --out DIR, too.")
    if dry_run:
        _say_plans(recipe, fields, patches, json=json, quiet=quiet)
        return
    stays = untouched(out / RECORD)
    with resumable(), Bar(quiet) as bar:
        if fields:
            records = agentmerge.sweep_all(recipe, fields, out, overwrite=goal.overwrite, full=report, watch=bar)
        else:
            redo, again = patches.replaces, patches.again
            record = agentmerge.merge(recipe, out, overwrite=redo, again=again, full=report, watch=bar)
            records = {"": record}
        packed = {} if fields else patches.write(records[""], bar)
    for name, record in records.items() if report else ():
        write_reports(record, out / name / "report.html", None)
    with printing(f"The merge is complete in {patches.place}"):
        tell_warnings(dict.fromkeys(note for record in records.values() for note in record.warnings), quiet)
        if fields:
            say(sweep_facts(records, out) if json else sweep_summary(records, out), as_json=json, quiet=quiet)
        elif packed and json:
            say({"merge": records[""], **packed}, as_json=True, quiet=quiet)
        else:
            text = ALREADY.format(out) if patches.stays and stays() else merge_summary(records[""], patches.place)
            say(records[""] if json else text, as_json=json, quiet=quiet)
            for line in patches.summary(packed):
                say(line, quiet=quiet)
    if push is not None:
        _push(patches.folder, push, public=public, quiet=quiet or json)


def _check_push(recipe: Recipe, repository: str, patches: Patches, *, swept: bool, dry_run: bool) -> None:
    """Raise what can be told of a push before hours of merging."""
    from agentmerge.cli.push import check_card  # not for `merge --help`
    from agentmerge.engine.reads import texts_of
    from agentmerge.hub.aimed import refuse_source
    from agentmerge.hub.push import check_name, logged_in

    if swept:
        raise RecipeError(
            "--push: a sweep makes several merges", todo="Push the one that you choose: `agentmerge push`."
        )
    if not patches.stays:
        raise RecipeError("--push: there is no --out, so that no folder stays", todo="Give --out DIR, too.")
    refuse_source(check_name(repository), texts_of(recipe))
    if not dry_run:
        logged_in(repository)
    check_card(recipe, repository, patches.folder, overwrite=patches.overwrite)


def _push(out: Path, repository: str, *, public: bool, quiet: bool) -> None:
    from agentmerge.cli.push import push_summary

    try:
        record = agentmerge.push(out, repository, public=public, bars=sys.stderr.isatty() and not quiet)
    except MergeError as error:
        error.add_note(f"the merge itself is complete in {out}; to push it: agentmerge push {out} {repository}")
        raise
    tell_warnings(record.warnings, quiet)
    say(push_summary(record), quiet=quiet)


def _say_plans(recipe: Recipe, fields: dict[str, list[str]], patches: Patches, *, json: bool, quiet: bool) -> None:
    """What would be done."""
    from agentmerge.engine.decisions import varied  # not for `merge --help`
    from agentmerge.engine.merge import finished
    from agentmerge.engine.preflight import planned_from_afar
    from agentmerge.engine.reads import check_output

    recipes, out = swept(recipe, fields), patches.folder
    first, *others = recipes.values()
    again = patches.again or bool(others)
    with planned_from_afar(first) as plan:
        plans = dict(zip(recipes, [plan, *(varied(plan, other) for other in others)], strict=True))
        done = [out / name for name, one in plans.items() if again and finished(out / name, one)]
        for name, one in plans.items():
            if out / name not in done:
                check_output(one, out / name, overwrite=patches.replaces)
        if fields:
            say(sweep_plan_facts(plans, out) if json else sweep_plan_summary(plans, out), as_json=json, quiet=quiet)
        else:
            say(plan_facts(plan, out) if json else plan_summary(plan, out), as_json=json, quiet=quiet)
        tell_warnings(dict.fromkeys(note for one in plans.values() for note in one.notes), quiet)
        for folder in done if patches.stays and not (json or fields) else ():
            say(ALREADY.format(folder), quiet=quiet)
