"""The command `agentmerge check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

import agentmerge
from agentmerge.cli.console import say
from agentmerge.cli.options import Json, takes_recipe
from agentmerge.cli.table import Column, Table
from agentmerge.recipe import Recipe

if TYPE_CHECKING:
    from agentmerge.engine.findings import CheckRecord


@takes_recipe("onto", "keep", "inputs")
def check(recipe: Recipe, json: Json = False) -> None:
    """Say whether the sources fit together, without reading their weights, samples aside.

    Exits with 2 when something does not.
    """
    record = agentmerge.check(recipe)
    say(record if json else _tables(record), as_json=json)
    if not record.ok:
        raise typer.Exit(2)


def _tables(record: CheckRecord) -> list[Any]:
    """The findings for people, then what they come to."""
    names = "severity", "found", "expected", "what to do"
    columns = [Column("where", "name"), *(Column(name, "text") for name in names)]
    table = Table("Findings", columns, stacked=True)
    for finding in record.findings:
        table.add(finding.where, finding.severity, finding.found, finding.expected, finding.todo)
    counts = {severity: record.count(severity) for severity in ("error", "warning", "note")}
    told = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for severity, count in counts.items())
    verdict = "The sources fit together" if record.ok else "A merge would stop here"
    return [
        *([table] if record.findings else []),
        f"{verdict}: {told}. Whether the numbers do, only reading them tells.",
    ]
