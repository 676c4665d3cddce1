"""Who is told how far the work is. Knows no work."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Is told how far the work is; every call comes from the thread that started it."""

    def begin(self, phase: str, total: int) -> None:
        """A phase begins: `total` bytes of input, or tokens where nothing is read."""

    def advance(self, amount: int) -> None:
        """So much more of it is done."""


class Silent:
    """A watch that says nothing."""

    def begin(self, phase: str, total: int) -> None:
        """Nothing to do."""

    def advance(self, amount: int) -> None:
        """Nothing to do."""
