"""The command `agentmerge inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli import options as o


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `merge` wrote.", show_default=False)],
    json: o.Json = False,
) -> None:
    """Read back what a merge did: sources, overlap, scales, what rounding took away and, after --report, retention."""
    from agentmerge.cli.console import say
    from agentmerge.cli.tables import record_tables
    from agentmerge.record import MergeRecord

    record = MergeRecord.load(folder)
    say(record if json else record_tables(record), as_json=json)
