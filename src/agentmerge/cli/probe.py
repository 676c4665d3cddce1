"""The command `agentmerge probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli import options as o


def probe(
    recipe: o.RecipeFile = None,
    base: o.Base = None,
    agent: o.Agents = None,
    method: o.Method = None,
    set_: o.Settings = None,
    missing: o.Missing = None,
    extra: o.Extra = None,
    unchanged: o.Unchanged = None,
    vocab: o.Vocab = None,
    rope: o.Rope = None,
    untie: o.Untie = False,
    workers: o.Workers = None,
    block_size: o.BlockSize = None,
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
    quiet: o.Quiet = False,
) -> None:
    """See what the agents changed, without writing a model."""
    from agentmerge.api import probe as run
    from agentmerge.cli.console import Bar, say, tell_warnings
    from agentmerge.cli.reports import check_places, write_reports
    from agentmerge.cli.tables import probe_tables

    wanted = o.build_recipe(
        recipe,
        base=base,
        agents=agent,
        method=method,
        settings=set_,
        sections={
            "inputs": o.inputs(missing, extra, unchanged, vocab, rope, untie),
            "run": {"workers": workers, "block_size": block_size},
        },
    )
    check_places(None if str(json) == "-" else json, html)
    if figures is not None:
        from agentmerge.report.figures import needs_matplotlib

        needs_matplotlib()
    with Bar(quiet) as bar:
        record = run(wanted, full=full or html is not None or figures is not None, watch=bar)
    tell_warnings(record.warnings, quiet)
    if json is not None and str(json) != "-":
        record.save(json)
    write_reports(record, html, figures)
    say(record if str(json) == "-" else probe_tables(record), as_json=str(json) == "-", quiet=quiet)
