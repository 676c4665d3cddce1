"""The command `agentmerge apply`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import agentmerge
from agentmerge.cli.console import Bar, resumable, say, tell_warnings
from agentmerge.cli.options import Json, Overwrite, Quiet
from agentmerge.cli.process import printing
from agentmerge.cli.sizes import format_size

if TYPE_CHECKING:
    from agentmerge.deltas.record import ApplyRecord


def apply(
    base: Annotated[str, typer.Option(help="The base that it was packed with.", show_default=False)],
    delta: Annotated[str, typer.Option(help="What `agentmerge pack` wrote.", show_default=False)],
    out: Annotated[Path, typer.Option(help="New or empty folder for the agent.", show_default=False)],
    overwrite: Overwrite = False,
    workers: Annotated[int | None, typer.Option(help="Threads.", show_default="one per CPU")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the agent of a packed delta and its base again.

    Byte for byte, every file; of other agents over a base (adapters, other sparse deltas) a checkpoint of their
    tensors. A killed run resumes when the same command is run again.
    """
    with resumable(), Bar(quiet) as bar:
        record = agentmerge.apply(base, delta, out, overwrite=overwrite, workers=workers, watch=bar)
    with printing(f"The agent is complete in {out}"):
        tell_warnings(record.warnings, quiet)
        say(record if json else summary(record, out), as_json=json, quiet=quiet)


def summary(record: ApplyRecord, out: Path) -> str:
    """What was written."""
    how = "the agent's own files" if record.same_files else "the agent's tensors, in files of our own making"
    return f"Wrote {out}: {format_size(record.nbytes)} of weights, {len(record.files)} files: {how}."
