"""What every command that measures with torch has in common: its arguments, and how its record is told."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agentmerge.cli.console import Bar, resumable, say, tell_warnings, untouched
from agentmerge.cli.process import printing

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
ALREADY = "Already complete: {} is this measurement of this model and data. --overwrite makes it anew."
Model = Annotated[str, typer.Argument(help="The agent: a folder with config, tokenizer and safetensors.")]
Rollouts = Annotated[
    Path, typer.Option(help='Its own rollouts, JSON lines of {"prompt": ..., "response": ...}.', show_default=False)
]


def tell(
    measure: Callable[[Bar], R],
    shown: Callable[[R], Any],
    complete: str,
    *,
    last: Path | None = None,
    json: bool,
    quiet: bool,
    resumes: bool = True,
) -> R:
    """Measure under a bar, and print the record, which is returned.

    Args:
        measure: told of its progress by the bar; its record has `warnings`.
        shown: the record for people.
        complete: what is said where printing fails; "" says nothing.
        last: the file that is written last; where an earlier run has written it, that is said.
        json: print the record itself.
        quiet: print nothing but errors.
        resumes: whether the same command goes on where a signal ended it.
    """
    stays = last and untouched(last)
    with resumable() if resumes else nullcontext(), Bar(quiet) as bar:
        record: Any = measure(bar)
    with printing(complete):
        tell_warnings(record.warnings, quiet)
        if last and stays and stays() and not json:
            say(ALREADY.format(last.parent), quiet=quiet)
        else:
            say(record if json else shown(record), as_json=json, quiet=quiet)
    found: R = record
    return found
