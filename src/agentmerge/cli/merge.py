"""The command `agentmerge merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import agentmerge
from agentmerge.cli.console import Bar, resumable, say, tell_warnings
from agentmerge.cli.options import Json, Overwrite, Quiet, takes_recipe
from agentmerge.cli.process import printing
from agentmerge.cli.recipes import parse_sweep
from agentmerge.cli.reports import write_reports
from agentmerge.cli.tables import merge_summary, plan_facts, plan_summary
from agentmerge.recipe import Recipe


@takes_recipe("inputs", "output", "seed", "run")
def merge(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(help="New or empty folder for the merged checkpoint.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, from headers alone.")] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=V1,V2,...",
            help="One merge per value, into OUT/FIELD=VALUE, reading once.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write report.html into OUT: what the agents changed, what was kept.")
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge agents into one checkpoint.

    A killed merge resumes when the same command is run again.
    """
    if dry_run:
        _say_plan(recipe, out, overwrite=overwrite, json=json, quiet=quiet)
        return
    with resumable(), Bar(quiet) as bar:
        if sweep is None:
            records = {"": agentmerge.merge(recipe, out, overwrite=overwrite, full=report, watch=bar)}
        else:
            field, values = parse_sweep(sweep)
            records = agentmerge.sweep(recipe, field, values, out, overwrite=overwrite, full=report, watch=bar)
    for name, record in records.items() if report else ():
        write_reports(record, out / name / "report.html", None)
    with printing(f"The merge is complete in {out}"):
        for name, record in records.items():
            tell_warnings(record.warnings, quiet)
            if not json:
                say(merge_summary(record, out / name), quiet=quiet)
        if json:
            say(records if sweep else records[""], as_json=True)


def _say_plan(recipe: Recipe, out: Path, *, overwrite: bool, json: bool, quiet: bool) -> None:
    """What would be done."""
    from agentmerge.engine.preflight import check_output, planned  # not for `merge --help`

    with planned(recipe) as plan:
        check_output(plan, out, overwrite=overwrite)
        say(plan_facts(plan, out) if json else plan_summary(plan, out), as_json=json, quiet=quiet)
        tell_warnings(plan.notes, quiet)
