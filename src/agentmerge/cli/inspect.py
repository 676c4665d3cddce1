"""The command `agentmerge inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli.console import say
from agentmerge.cli.options import Json
from agentmerge.cli.tables import record_tables
from agentmerge.record import MergeRecord


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `merge` wrote.", show_default=False)],
    json: Json = False,
) -> None:
    """Read back what a merge did.

    It shows sources, overlap, scales, what rounding took away and, after --report, retention.
    """
    record = MergeRecord.load(folder)
    say(record if json else record_tables(record), as_json=json)
