"""What appears on the terminal: results on stdout, warnings and progress on stderr."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import typer
from pydantic_core import to_json
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from agentmerge.cli.process import Stopped
from agentmerge.cli.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentmerge.errors import Note

EVERY = 10.0
"""Seconds between two lines of progress."""
PIPE = 100
"""Characters of a line where nobody says how many there are, as in a pipe."""


class Bar:
    """Progress in bytes, with bytes/s and time left, on a terminal's stderr; silent elsewhere.

    A terminal that is to show no colours, or that knows no cursor codes, gets a line now and then in place of a bar.
    """

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        shown, plain = console.is_terminal and not quiet, console.no_color or console.is_dumb_terminal
        self._bar = Progress(*columns, console=console, transient=True) if shown and not plain else None
        self._lines = Lines() if shown and plain else None
        self._task: Any = None

    def begin(self, phase: str, total: int) -> None:
        """A pass begins over `total` bytes."""
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(phase, total=total)
        if self._lines is not None:
            self._lines.begin(phase, total)

    def advance(self, nbytes: int) -> None:
        """So many more bytes are done."""
        if self._bar is not None:
            self._bar.update(self._task, advance=nbytes)
        if self._lines is not None:
            self._lines.advance(nbytes)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class Lines:
    """Progress in bytes as plain lines on stderr, one every ten seconds."""

    def begin(self, phase: str, total: int) -> None:
        """A pass begins over `total` bytes."""
        self._phase, self._total, self._done = phase, total, 0
        self._begun = self._told = monotonic()

    def advance(self, nbytes: int) -> None:
        """So many more bytes are done."""
        self._done, now = self._done + nbytes, monotonic()
        if now - self._told >= EVERY:
            self._told = now
            done, total = format_size(self._done), format_size(self._total)
            speed = format_size(int(self._done / (now - self._begun)))
            typer.echo(f"{self._phase}: {self._done / max(self._total, 1):.0%}, {done} of {total}, {speed}/s", err=True)


@contextmanager
def resumable() -> Iterator[None]:
    """Work that a signal may end and that goes on later: its exit code (130 for Ctrl-C), no traceback."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stop:
        said, code = (str(stop), stop.code) if isinstance(stop, Stopped) else ("Interrupted", 130)
        typer.echo(f"{said}; the same command resumes.", err=True)
        raise typer.Exit(code) from None


def say(result: Any, *, as_json: bool = False, quiet: bool = False) -> None:
    """Print a result: one JSON document for machines; for people a text, a table, or several with lines between."""
    if as_json:
        typer.echo(to_json(result, indent=2, inf_nan_mode="null").decode())
        return
    if not quiet:
        parts, width = result if isinstance(result, list) else [result], columns()
        typer.echo("\n\n".join(part if isinstance(part, str) else "\n".join(part.lines(width)) for part in parts))


def columns() -> int:
    """Characters of a line on stdout: what COLUMNS says, else what the terminal has, else a line of a page."""
    return shutil.get_terminal_size((80 if sys.stdout.isatty() else PIPE, 24)).columns


def tell_warnings(warnings: Iterable[str | Note], quiet: bool) -> None:
    """Print each warning on stderr; what is a note by its severity is for `check` alone."""
    for warning in () if quiet else warnings:
        if getattr(warning, "severity", "warning") == "warning":
            typer.echo(f"warning: {warning}", err=True)
