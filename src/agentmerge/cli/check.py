"""The command `agentmerge check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmerge.cli import options as o

if TYPE_CHECKING:
    from agentmerge.engine.preflight import CheckRecord


def check(
    recipe: o.RecipeFile = None,
    base: o.Base = None,
    agent: o.Agents = None,
    method: o.Method = None,
    set_: o.Settings = None,
    missing: o.Missing = None,
    extra: o.Extra = None,
    vocab: o.Vocab = None,
    rope: o.Rope = None,
    untie: o.Untie = False,
    tokenizer_from: Annotated[
        str | None, typer.Option(help="Whose tokenizer to copy: base or an agent.", show_default="base")
    ] = None,
    json: o.Json = False,
) -> None:
    """Say whether the sources fit together, without reading their weights. Exits with 2 when something does not."""
    from agentmerge.api import check as run
    from agentmerge.cli.console import say

    wanted = o.build_recipe(
        recipe,
        base=base,
        agents=agent,
        method=method,
        settings=set_,
        sections={
            "inputs": o.inputs(missing, extra, None, vocab, rope, untie, tokenizer_from),
        },
    )
    record = run(wanted)
    say(record if json else _tables(record), as_json=json)
    if not record.ok:
        raise typer.Exit(2)


def _tables(record: CheckRecord) -> list[Any]:
    """The findings for people, then what they come to."""
    from rich.table import Table

    table = Table(title="Findings", title_justify="left", show_lines=True)
    for column in ("severity", "where", "found", "expected", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in record.findings:
        table.add_row(finding.severity, finding.where, finding.found, finding.expected, finding.todo)
    counts = {severity: record.count(severity) for severity in ("error", "warning", "note")}
    told = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for severity, count in counts.items())
    verdict = "The sources fit together" if record.ok else "A merge would stop here"
    return [
        *([table] if record.findings else []),
        f"{verdict}: {told}. Whether the numbers do, only reading them tells.",
    ]
