"""A file that appears under its name when it is whole, written at offsets from many threads."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from agentmerge.errors import OutputError, Where
from agentmerge.files.os_errors import output_errors
from agentmerge.files.positional import lock_exclusive, sync_data, sync_folder, write_from

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array

TODO = "Free some space or choose another place with --out, and run the same command again: it starts over."


class NewFile:
    """It grows beside its place, hidden and locked; what a killed run left there is written over by the next."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """See the class.

        Args:
            path: where it shall appear.
            overwrite: replace a file that is there.

        Raises:
            OutputError: something is there, another run writes there, or the system refuses.
        """
        self._path, self._overwrite, self._published = path, overwrite, False
        self._check()
        self._part = path.with_name(f".{path.name}.part")
        with output_errors(path, TODO):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            if not lock_exclusive(self._fd):
                os.close(self._fd)
                raise self._wrong("another run is writing here", "Wait for it, or choose another --out.")
            os.ftruncate(self._fd, 0)

    def _check(self) -> None:
        if self._path.is_dir():
            raise self._wrong("is a folder", "Give the name of a file with --out.")
        if os.path.lexists(self._path) and not self._overwrite:
            raise self._wrong("exists already", "Choose another with --out, or pass --overwrite.")

    def write(self, array: Array, offset: int) -> None:
        """Put a contiguous array at an offset; from any thread.

        Raises:
            OutputError: the disk is full, or fails.
        """
        with output_errors(self._path, TODO):
            write_from(self._fd, array, offset)

    def publish(self, size: int) -> None:
        """The file is whole, of so many bytes: let it appear.

        Raises:
            OutputError: something came there meanwhile, or the system refuses.
        """
        with output_errors(self._path, TODO):
            os.ftruncate(self._fd, size)
            sync_data(self._fd)
            self._check()
            self._part.replace(self._path)
            self._published = True
            sync_folder(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            with suppress(OSError):
                self._part.unlink()
        os.close(self._fd)

    def _wrong(self, found: str, todo: str) -> OutputError:
        where = Where(path=str(self._path))
        return OutputError(f"{self._path}: {found}", expected="a new file", todo=todo, where=where)
