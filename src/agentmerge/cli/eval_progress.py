"""How far an evaluation is: requests and tokens per second and the time left, as a bar or as lines on stderr."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from agentmerge.cli.console import EVERY

if TYPE_CHECKING:
    from agentmerge.eval.request import Response

AFRESH = 5.0
"""Seconds by which a wait must outlast those that were told to be told itself."""
FIRST = 8
"""Answers of a turn that tell at once where all of them are empty."""


class Shown:
    """A bar on a terminal; elsewhere, as in a job's log, a line every ten seconds and one for each suite."""

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        plain = console.no_color or console.is_dumb_terminal or not console.is_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        self._bar = None if quiet or plain else Progress(*columns, console=console, transient=True)
        self._lines = plain and not quiet
        self._task: Any = None
        self._open = self._done = self._tokens = self._empty = 0
        self._head = ""
        self._begun = self._told = monotonic()
        self._quiet, self._until = quiet, -math.inf

    def asking(self, suite: str, turn: int, stored: int, open_: int) -> None:
        """A turn begins."""
        self._head = suite if turn == 1 else f"{suite}, turn {turn}"
        self._open, self._done, self._tokens, self._empty = open_, 0, 0, 0
        self._begun = self._told = monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(self._head, total=open_, pace="")
        if self._lines and (turn == 1 or stored):
            known = f", {stored:,} are answered already" if stored else ""
            self._say(f"{open_:,} requests{known}")

    def answered(self, response: Response) -> None:
        """One more is answered."""
        self._done += 1
        self._tokens += response.tokens or 0
        self._empty += response.empty
        if self._done == self._empty == FIRST and not self._quiet:
            aside = f"; the server sends what is generated as {response.aside}" if response.aside else ""
            self._say(f"the first {FIRST} answers are all empty{aside}")
        if self._bar is not None:
            self._bar.update(self._task, advance=1, pace=self.pace())
        if self._lines and monotonic() - self._told >= EVERY:
            self._told = monotonic()
            self._say(f"{self._done:,} of {self._open:,} requests, {self.pace()}")

    def waiting(self, text: str, seconds: float) -> None:
        """A request waits for its next try; of many that wait together the first is told."""
        until = monotonic() + seconds
        if not self._quiet and until >= self._until + AFRESH:
            self._until = until
            self._say(text)

    def scoring(self, suite: str, items: int) -> None:
        """All are answered."""
        self._head = suite
        if self._lines:
            self._say(f"scoring {items:,} items")

    def pace(self) -> str:
        """Requests and tokens per second, and the time left."""
        seconds = max(monotonic() - self._begun, 1e-6)
        left = (self._open - self._done) * seconds / max(self._done, 1)
        return f"{self._done / seconds:.1f} requests/s, {self._tokens / seconds:,.0f} tokens/s, {duration(left)} left"

    def _say(self, text: str) -> None:
        if self._bar is not None:  # above the bar, which is drawn again below
            self._bar.console.print(f"{self._head}: {text}", markup=False, highlight=False)
        else:
            typer.echo(f"{self._head}: {text}", err=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
