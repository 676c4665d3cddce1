"""The command `agentmerge push`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import agentmerge
from agentmerge.cli.console import resumable, say, tell_warnings
from agentmerge.cli.options import Json, Public, Quiet
from agentmerge.cli.sizes import format_size
from agentmerge.hub.push import PushRecord


def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `merge` wrote.", show_default=False)],
    repository: Annotated[
        str,
        typer.Argument(
            metavar="OWNER/NAME[@BRANCH]",
            help="On the hub, main unless a branch is named; made when it is not there.",
            show_default=False,
        ),
    ],
    public: Public = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put a merge on the Hugging Face hub.

    Its weights, record and model card are checked before anything is uploaded.
    """
    with resumable():
        record = agentmerge.push(folder, repository, public=public, bars=sys.stderr.isatty() and not quiet)
    tell_warnings(record.warnings, quiet)
    say(record if json else push_summary(record), as_json=json, quiet=quiet)


def push_summary(record: PushRecord) -> str:
    """What was put where."""
    seen = "you and your organisation" if record.private else "everybody"
    return (
        f"Pushed {record.files} files, {format_size(record.bytes)}, to {record.url}, which {seen} can see "
        f"(commit {record.commit[:12]}, licence {record.license}, merged from {', '.join(record.base_models)})."
    )
