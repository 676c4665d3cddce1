"""Where bytes are read or written, what the OS says becomes an error of ours that names the place."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentmerge.errors import MergeError, OutputError, SourceError, SourceNotFoundError, Where
from agentmerge.files.positional import ShortRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AGAIN = "The file is damaged: download or save it again."

RESUMES = "Free some space and run the same command again: it resumes."
ELSEWHERE = "Choose another place."
FULL, REFUSED = {errno.ENOSPC, errno.EDQUOT}, {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
"""What the system says of a disk with no room, and of a place that takes no such file of this user."""


@contextmanager
def source_errors(place: str, path: Path | None = None) -> Iterator[None]:
    """Reading fails with a SourceError.

    Args:
        place: begins the message.
        path: the file; None where it is the place.
    """
    where = Where(path=place if path is None else str(path))

    def error(problem: OSError | ShortRead) -> MergeError:
        if isinstance(problem, ShortRead):
            found = f"{place}: truncated: {problem.got} of {problem.wanted} bytes are there"
            return SourceError(found, todo=AGAIN, where=where)
        if isinstance(problem, FileNotFoundError):
            return SourceNotFoundError(f"{place}: no such file", todo="Download or save it again.", where=where)
        return SourceError(f"{place}: can't be read: {problem.strerror}.", todo=remedy(problem), where=where)

    with _ours(error):
        yield


@contextmanager
def output_errors(out: Path, todo: str = "", full: str = RESUMES) -> Iterator[None]:
    """Writing fails with an OutputError.

    Args:
        out: begins the message.
        todo: whole sentences, whatever the system says; "" tells by that what helps.
        full: those for a disk with no room, where `todo` is "".
    """

    def error(problem: OSError | ShortRead) -> MergeError:
        number = problem.errno if isinstance(problem, OSError) else 0
        usual = full if number in FULL else ELSEWHERE if number in REFUSED else "Check the disk."
        told = remedy(problem) or todo or usual
        return OutputError(f"{out}: can't be written: {problem}", todo=told, where=Where(path=str(out)))

    with _ours(error):
        yield


def remedy(problem: OSError | ShortRead) -> str:
    """What helps where it is this process that may open no more files, not the place; "" where that is not so."""
    if isinstance(problem, OSError) and problem.errno in {errno.EMFILE, errno.ENFILE}:
        return "Let this process open more files (ulimit -n 1024), or use fewer --workers."
    return ""


@contextmanager
def _ours(error: Callable[[OSError | ShortRead], MergeError]) -> Iterator[None]:
    """The one place that tells the OS's errors from ours, which are built-in ones too."""
    try:
        yield
    except MergeError:
        raise
    except (OSError, ShortRead) as problem:
        raise error(problem) from problem
