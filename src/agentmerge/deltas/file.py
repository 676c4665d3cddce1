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
        check_free(path, overwrite=overwrite)
        self._part = path.with_name(f".{path.name}.part")
        with output_errors(path, full=TODO):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            if not lock_exclusive(self._fd):
                os.close(self._fd)
                raise _wrong(path, "another run is writing here", "Wait for it, or choose another --out.")
            os.ftruncate(self._fd, 0)

    def write(self, array: Array, offset: int) -> None:
        """Put a contiguous array at an offset; from any thread.

        Raises:
            OutputError: the disk is full, or fails.
        """
        with output_errors(self._path, full=TODO):
            write_from(self._fd, array, offset)

    def publish(self, size: int) -> None:
        """The file is whole, of so many bytes: let it appear.

        Raises:
            OutputError: something came there meanwhile, or the system refuses.
        """
        with output_errors(self._path, full=TODO):
            os.ftruncate(self._fd, size)
            sync_data(self._fd)
            check_free(self._path, overwrite=self._overwrite)
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


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise OutputError where a new file can't have this name.

    Args:
        path: of the file.
        overwrite: replace a file that is there.
    """
    if path.is_dir():
        raise _wrong(path, "is a folder", "Give the name of a file.")
    if os.path.lexists(path) and not overwrite:
        raise _wrong(path, "exists already", "Choose another name, or pass --overwrite.")


def _wrong(path: Path, found: str, todo: str) -> OutputError:
    return OutputError(f"{path}: {found}", expected="a new file", todo=todo, where=Where(path=str(path)))
