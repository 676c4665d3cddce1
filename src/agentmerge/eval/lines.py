"""Files of JSON lines: read tolerantly, appended to as soon as something is known, replaced as a whole."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, Where
from agentmerge.files.documents import whole_number
from agentmerge.files.journal import busy
from agentmerge.files.os_errors import output_errors
from agentmerge.files.positional import lock_exclusive, write_from
from agentmerge.files.staging import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from agentmerge.eval.request import JSON


class Appended:
    """A file of JSON lines that one process at a time adds to; what a kill left torn is cut off."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and lock it; `lines` holds what is there.

        Raises:
            OutputError: another process adds to it, or it can't be written.
        """
        self._path, self._fd = path, -1
        with output_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if not lock_exclusive(self._fd):
                self.close()
                raise busy(path.parent.parent)
            with open(self._fd, "rb", closefd=False) as file:
                content = file.read()
            self._end = content.rfind(b"\n") + 1
            os.ftruncate(self._fd, self._end)
        self.lines = list(_objects(content[: self._end]))

    def append(self, entry: Mapping[str, JSON]) -> None:
        """Add a line; a kill of this process does not lose it.

        Raises:
            OutputError: it can't be written.
        """
        line = json.dumps(entry, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
        with output_errors(self._path):
            write_from(self._fd, line, self._end)
        self._end += len(line)

    def close(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def read_lines(path: Path) -> list[dict[str, JSON]]:
    """The objects of a file of JSON lines; empty lines are none.

    Raises:
        EvalError: it is not there, or a line is no JSON object.
    """
    where = Where(path=str(path))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EvalError(f"{path}: can't be read: {error.strerror}", where=where) from error
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            entry = _object(line)
            if entry is None:
                expected = "a JSON object on every line"
                raise EvalError(f"{path}: line {number} is {line[:60]!r}", expected=expected, where=where)
            found.append(entry)
    return found


def write_lines(path: Path, entries: Iterable[Mapping[str, JSON]]) -> None:
    """Replace a file all at once by these lines.

    Raises:
        OutputError: it can't be written there.
    """
    lines = [json.dumps(entry, ensure_ascii=False).encode(errors="surrogatepass") + b"\n" for entry in entries]
    replace_file(path, b"".join(lines))


def _objects(content: bytes) -> Iterator[dict[str, JSON]]:
    """The lines that are objects; a damaged one is as good as none."""
    for line in content.split(b"\n"):
        entry = _object(line)
        if entry is not None:
            yield entry


def _object(line: bytes) -> dict[str, JSON] | None:
    try:
        found = json.loads(line.decode(errors="surrogatepass"), parse_int=whole_number)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
