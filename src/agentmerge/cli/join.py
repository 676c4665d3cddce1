"""The command `agentmerge join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import agentmerge
from agentmerge.cli.console import Bar, say
from agentmerge.cli.options import Json, Quiet
from agentmerge.cli.process import printing
from agentmerge.cli.recipes import pairs
from agentmerge.cli.sizes import format_size


def join(
    agent: Annotated[
        list[str], typer.Option("--agent", metavar="NAME=DELTA", help="A packed delta; repeat.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The file, NAME.safetensors.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file once the new one is whole.")] = False,
    workers: Annotated[int | None, typer.Option(help="Threads.", show_default="one per CPU")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make packed deltas of one base one, without the base, where no two changed the same element.

    It is what RAM merges of them; where elements are shared, it says how many, and a merge with the base is needed.
    """
    with Bar(quiet) as bar:
        record = agentmerge.join(
            pairs(agent, "--agent", "NAME=DELTA"), out, overwrite=overwrite, workers=workers, watch=bar
        )
    with printing(f"The delta is complete in {out}"):
        changed = ", ".join(f"{name} {count:,}" for name, count in record.changed.items())
        text = (
            f"Wrote {out}: {format_size(record.nbytes)} over {record.base}; of {record.elements:,} elements changed: "
        )
        say(record if json else f"{text}{changed}.", as_json=json, quiet=quiet)
