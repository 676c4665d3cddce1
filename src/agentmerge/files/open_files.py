"""Files that are opened when they are first used, in a process few at a time: there may be more than it may open."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from agentmerge.machine import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 512
"""Files that all of a process's OpenFiles keep open together, where it may open twice as many."""


@dataclass(slots=True)
class _OpenFile:
    fd: int
    users: int = 0


class OpenFiles:
    """Files by name, opened on first use; those that nobody uses are closed when there are too many.

    Safe for threads: a file in use is never closed, so `most`, and what the process may keep open, can be exceeded by
    the files in use. Who uses many at once asks `crowded` first.
    """

    def __init__(self, opener: Callable[[str], int], most: int = 4) -> None:
        self._opener = opener
        self._most = most
        self._files: dict[str, _OpenFile] = {}  # least recently used first
        self._closed = False

    @contextmanager
    def borrow(self, name: str) -> Iterator[int]:
        """The descriptor of the file `name`, open for as long as the `with` lasts.

        Raises:
            ValueError: after close().
            OSError: or whatever else the opener raises.
        """
        fd = self.take(name)
        try:
            yield fd
        finally:
            self.give(name)

    def take(self, name: str) -> int:
        """`borrow` without its end: `give` must follow."""
        with _all.lock:
            if self._closed:
                raise ValueError(f"{name}: read after close()")
            file = self._files.pop(name, None)
            if file is None:
                _all.make_room()
                file = _OpenFile(self._opener(name))
                _all.open += 1
            self._files[name] = file
            _all.used(self, name, file)
            return file.fd

    def give(self, name: str) -> None:
        """A file that was taken is not needed any more."""
        with _all.lock:
            _all.left(self, name, self._files[name])
            self._close_idle(0 if self._closed else self._most)

    def close(self) -> None:
        """Close every file; one that a thread still reads is closed when that read ends."""
        with _all.lock:
            self._closed = True
            self._close_idle(0)

    def close_one(self, name: str) -> None:
        """Close a file that nobody uses; the lock is held."""
        os.close(self._files.pop(name).fd)
        _all.closed(self, name)

    def _close_idle(self, keep: int) -> None:
        idle = [name for name, file in self._files.items() if file.users == 0]
        for name in idle[: max(0, len(self._files) - keep)]:
            self.close_one(name)


class _All:
    """The files of every OpenFiles of this process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.open = 0
        self._idle: dict[tuple[OpenFiles, str], None] = {}  # least recently used first

    @property
    def in_use(self) -> int:
        """How many somebody uses."""
        return self.open - len(self._idle)

    def make_room(self) -> None:
        """Close files that nobody uses until another may be opened, or there are no such."""
        most = _most()
        while self.open >= most and self._idle:
            files, name = next(iter(self._idle))
            files.close_one(name)

    def used(self, files: OpenFiles, name: str, file: _OpenFile) -> None:
        """One more uses a file."""
        file.users += 1
        self._idle.pop((files, name), None)

    def left(self, files: OpenFiles, name: str, file: _OpenFile) -> None:
        """One less uses it."""
        file.users -= 1
        if not file.users:
            self._idle[files, name] = None

    def closed(self, files: OpenFiles, name: str) -> None:
        """A file is closed."""
        self.open -= 1
        self._idle.pop((files, name), None)


_all = _All()


def crowded() -> bool:
    """Whether the files in use are as many as shall be open: who has some gives them back before taking more."""
    return _all.in_use >= _most()


def _most() -> int:
    return max(1, min(MOST, descriptors() // 2))
