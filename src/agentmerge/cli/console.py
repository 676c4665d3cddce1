"""What appears on the terminal: results on stdout, warnings and progress on stderr."""

from __future__ import annotations

from contextlib import contextmanager
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentmerge.errors import Note


class Bar:
    """A progress bar in bytes, with bytes/s and time left, on a terminal's stderr; silent elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        shown = console.is_terminal and not quiet
        self._bar = Progress(*columns, console=console, transient=True) if shown else None
        self._task: Any = None

    def begin(self, phase: str, total: int) -> None:
        """A pass begins over `total` bytes."""
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(phase, total=total)

    def advance(self, nbytes: int) -> None:
        """So many more bytes are done."""
        if self._bar is not None:
            self._bar.update(self._task, advance=nbytes)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


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
    """Print a result: one JSON document for machines, a text or a rich table (or several) for people."""
    if as_json:
        typer.echo(to_json(result, indent=2, inf_nan_mode="null").decode())
        return
    if quiet:
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    for part in result if isinstance(result, list) else [result]:
        console.print(part, markup=False, soft_wrap=isinstance(part, str))


def tell_warnings(warnings: Iterable[str | Note], quiet: bool) -> None:
    """Print each warning on stderr; what is a note by its severity is for `check` alone."""
    for warning in () if quiet else warnings:
        if getattr(warning, "severity", "warning") == "warning":
            typer.echo(f"warning: {warning}", err=True)
