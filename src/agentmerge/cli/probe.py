"""The command `agentmerge probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import agentmerge
from agentmerge.cli.console import Bar, say, tell_warnings
from agentmerge.cli.options import Quiet, takes_recipe
from agentmerge.cli.process import printing
from agentmerge.cli.reports import check_places, write_reports
from agentmerge.cli.tables import probe_tables
from agentmerge.recipe import Recipe
from agentmerge.report.figures import needs_matplotlib


@takes_recipe("inputs", "run.workers", "run.block_size", without=["inputs.tokenizer_from"])
def probe(
    recipe: Recipe,
    json: Annotated[
        Path | None,
        typer.Option(help="Write everything to FILE, for `merge --survey FILE`; - prints it.", show_default=False),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Measure all that a report shows; about twice the time.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a report to FILE, one page without network.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write its figures as PNG and SVG; needs matplotlib.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """See what the agents changed, without writing a model."""
    printed = json == Path("-")
    survey = None if printed else json
    check_places(survey, html, recipe=recipe, figures=figures)
    if figures is not None:
        needs_matplotlib()
    with Bar(quiet) as bar:
        record = agentmerge.probe(recipe, full=full or html is not None or figures is not None, watch=bar)
    if survey is not None:
        record.save(survey)
    write_reports(record, html, figures)
    written = [str(path) for path in (survey, html, figures) if path is not None]
    with printing(f"The probe is complete in {', '.join(written)}" if written else ""):
        tell_warnings(record.warnings, quiet)
        say(record if printed else probe_tables(record), as_json=printed, quiet=quiet)
