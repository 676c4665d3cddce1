"""What appears on the terminal: results on stdout, warnings and progress on stderr."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import typer
from pydantic_core import to_json
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from agentmerge.cli.process import Stopped
from agentmerge.cli.sizes import format_size
from agentmerge.values import format_flop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from agentmerge.errors import Note

EVERY, SELDOM = 10.0, 60.0
"""Seconds between two lines of progress, on a terminal and in a log."""
PIPE = 100
"""Characters of a line where nobody says how many there are, as in a pipe."""


@dataclass
class Amount:
    """How far a phase is: in bytes, and in matrices and FLOP where it computes at length."""

    phase: str
    total: int
    matrices: int = 0
    flop: float = 0.0
    begun: float = field(default_factory=lambda: monotonic())
    done: int = 0
    done_matrices: int = 0
    done_flop: float = 0.0

    def advance(self, nbytes: int, matrices: int, flop: float) -> None:
        """So much more is done."""
        self.done += nbytes
        self.done_matrices += matrices
        self.done_flop += flop

    @property
    def share(self) -> float:
        """Of the phase, 0 to 1: of what takes its time."""
        return self.done_flop / self.flop if self.flop else self.done / max(self.total, 1)

    def text(self, now: float) -> str:
        """In words, with the speed at this time."""
        read = f"{format_size(self.done)} of {format_size(self.total)}"
        if self.flop:
            computed = f"{format_flop(self.done_flop)} of {format_flop(self.flop)}"
            return f"{self.done_matrices:,} of {self.matrices:,} matrices, {computed}, {read}"
        return f"{read}, {format_size(int(self.done / max(now - self.begun, 1e-9)))}/s"


class Bar:
    """Progress with its speed and the time left, on stderr.

    What is no terminal, such as a job's log, gets a line a minute in place of a bar; a terminal that is to show no
    colours, or that knows no cursor codes, one every ten seconds.
    """

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(),
        )
        plain = not console.is_terminal or console.no_color or console.is_dumb_terminal
        self._bar = None if quiet or plain else Progress(*columns, console=console, transient=True)
        self._lines = Lines(EVERY if console.is_terminal else SELDOM) if plain and not quiet else None
        self._task: Any = None

    def begin(self, phase: str, total: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """A phase begins; see Watch.begin."""
        self._amount = Amount(phase, total, matrices, flop)
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(phase, total=1.0, amount="")
        if self._lines is not None:
            self._lines.begin(phase, total, matrices=matrices, flop=flop)

    def advance(self, nbytes: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """So much more is done."""
        if self._bar is not None:
            self._amount.advance(nbytes, matrices, flop)
            self._bar.update(self._task, completed=self._amount.share, amount=self._amount.text(monotonic()))
        if self._lines is not None:
            self._lines.advance(nbytes, matrices=matrices, flop=flop)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class Lines:
    """Progress as plain lines on stderr."""

    def __init__(self, every: float = EVERY) -> None:
        """Seconds between two of them."""
        self._every, self._told = every, monotonic()

    def begin(self, phase: str, total: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """A phase begins; see Watch.begin."""
        self._amount = Amount(phase, total, matrices, flop)

    def advance(self, nbytes: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """So much more is done."""
        self._amount.advance(nbytes, matrices, flop)
        now = monotonic()
        if now - self._told >= self._every:
            self._told = now
            typer.echo(f"{self._amount.phase}: {self._amount.share:.0%}, {self._amount.text(now)}", err=True)


@contextmanager
def resumable() -> Iterator[None]:
    """Work that a signal may end and that goes on later: its exit code (130 for Ctrl-C), no traceback."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stop:
        said, code = (str(stop), stop.code) if isinstance(stop, Stopped) else ("Interrupted", 130)
        typer.echo(f"{said}; the same command resumes.", err=True)
        raise typer.Exit(code) from None


def untouched(file: Path) -> Callable[[], bool]:
    """What tells, when it is called, whether a file that is there now is still that one; False where there is none."""
    before = _written(file)
    return lambda: before is not None and before == _written(file)


def _written(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


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
