"""Who is told how far the work is. Knows no work."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Is told how far the work is; every call comes from the thread that started it."""

    def begin(self, phase: str, total: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """A phase begins.

        Args:
            phase: its name.
            total: bytes of input, or tokens where nothing is read.
            matrices: that are computed at length besides.
            flop: what that takes.
        """

    def advance(self, amount: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """So much more of it is done."""


class Silent:
    """A watch that says nothing."""

    def begin(self, phase: str, total: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """Nothing to do."""

    def advance(self, amount: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        """Nothing to do."""
