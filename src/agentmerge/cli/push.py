"""The command `agentmerge push`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import agentmerge
from agentmerge.cli.console import resumable, say, tell_warnings
from agentmerge.cli.options import Json, Public, Quiet
from agentmerge.cli.sizes import format_size
from agentmerge.errors import OutputError
from agentmerge.hub.push import PushRecord

if TYPE_CHECKING:
    from agentmerge.recipe import Recipe


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


def check_card(recipe: Recipe, repository: str, out: Path, *, overwrite: bool) -> None:
    """Raise OutputError for what a push would miss in the model card of a merge that is still to be made.

    Weights that can't be looked at from afar leave it to the push.
    """
    from agentmerge.engine.merge import finished, side_files_of  # not for `push --help`
    from agentmerge.engine.preflight import planned_from_afar
    from agentmerge.hub.afar import UnseenError
    from agentmerge.hub.ready import CARD, lacking, models_of
    from agentmerge.sidefiles.card import metadata_in

    with suppress(UnseenError), planned_from_afar(recipe) as plan:
        if not overwrite and finished(out, plan):
            return  # the push itself tells it at once
        card = metadata_in(side_files_of(plan)[CARD].decode())
        problems = list(lacking(card, models_of(plan.identities(), recipe.agents), str(out / CARD)))
        if problems:
            error = OutputError(*problems)
            error.add_note(
                f"nothing was merged; merge without --push, mend {CARD}, `agentmerge push {out} {repository}`"
            )
            raise error


def push_summary(record: PushRecord) -> str:
    """What was put where."""
    seen = "you and your organisation" if record.private else "everybody"
    return (
        f"Pushed {record.files} files, {format_size(record.bytes)}, to {record.url}, which {seen} can see "
        f"(commit {record.commit[:12]}, licence {record.license}, merged from {', '.join(record.base_models)})."
    )
