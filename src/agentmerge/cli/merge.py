"""The command `agentmerge merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli import options as o


def merge(
    out: Annotated[Path, typer.Option(help="New or empty folder for the merged checkpoint.", show_default=False)],
    recipe: o.RecipeFile = None,
    base: o.Base = None,
    agent: o.Agents = None,
    method: o.Method = None,
    set_: o.Settings = None,
    dtype: Annotated[str | None, typer.Option(help="base, bfloat16, float16 or float32.", show_default="base")] = None,
    rounding: Annotated[str | None, typer.Option(help="nearest or stochastic.", show_default="nearest")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.", show_default="0")] = None,
    shard_size: Annotated[str | None, typer.Option(help="Most data bytes of one file.", show_default="5GB")] = None,
    missing: o.Missing = None,
    extra: o.Extra = None,
    unchanged: o.Unchanged = None,
    vocab: o.Vocab = None,
    rope: o.Rope = None,
    untie: o.Untie = False,
    tokenizer_from: Annotated[
        str | None, typer.Option(help="Whose tokenizer to copy: base or an agent.", show_default="base")
    ] = None,
    workers: o.Workers = None,
    block_size: o.BlockSize = None,
    runner: Annotated[str | None, typer.Option(help="Who does the work: local.", show_default="local")] = None,
    survey: Annotated[
        Path | None,
        typer.Option(help="A survey that `probe --json` wrote: no second look.", show_default=False),
    ] = None,
    allow_slow: Annotated[
        bool, typer.Option("--allow-slow", help="Start although the arithmetic takes hours without a GPU.")
    ] = False,
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT once the new one is whole.")] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Merge agents into one checkpoint. A killed merge resumes when the same command is run again."""
    from agentmerge.api import merge as run
    from agentmerge.api import sweep as run_sweep
    from agentmerge.cli.console import Bar, say, tell_warnings
    from agentmerge.cli.reports import write_reports
    from agentmerge.cli.tables import merge_summary, plan_summary
    from agentmerge.engine.preflight import check_output, planned

    wanted = o.build_recipe(
        recipe,
        base=base,
        agents=agent,
        method=method,
        settings=set_,
        seed=seed,
        sections={
            "inputs": o.inputs(missing, extra, unchanged, vocab, rope, untie, tokenizer_from=tokenizer_from),
            "output": {"dtype": dtype, "rounding": rounding, "shard_size": shard_size},
            "run": {
                "workers": workers,
                "block_size": block_size,
                "runner": runner,
                "survey": None if survey is None else str(survey),
                "allow_slow": True if allow_slow else None,
            },
        },
    )
    if dry_run:
        with planned(wanted) as plan:
            check_output(plan, out)
            say(plan_summary(plan, out), as_json=json, quiet=quiet)
            tell_warnings(map(str, plan.notes), quiet)
        return
    try:
        with Bar(quiet) as bar:
            if sweep is None:
                records = {"": run(wanted, out, overwrite=overwrite, full=report, watch=bar)}
            else:
                field, values = o.parse_sweep(sweep)
                records = run_sweep(wanted, field, values, out, overwrite=overwrite, full=report, watch=bar)
    except KeyboardInterrupt:
        typer.echo("Interrupted; the same command resumes.", err=True)
        raise typer.Exit(130) from None
    for name, record in records.items():
        tell_warnings(record.warnings, quiet)
        if report:
            write_reports(record, out / name / "report.html", None)
        say(record if json else merge_summary(record, out / name), as_json=json, quiet=quiet)
