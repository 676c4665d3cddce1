"""A locked list of what is finished, a line of checksum and JSON each, that survives a kill and a flipped bit."""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING, Any

from agentmerge.errors import OutputError, Where
from agentmerge.files.positional import lock_exclusive, sync_data, write_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


JOURNAL = ".journal.jsonl"
"""Its name in a staging folder, which is ours where it lies in it."""


class Journal:
    """Opened for one run at a time; `entries` holds what earlier runs of the same work finished."""

    def __init__(self, path: Path, out: Path | None = None) -> None:
        """Open or create the file and lock it.

        Args:
            path: of the file.
            out: what the work ends in, for messages; None for the file's folder.

        Raises:
            OutputError: another process works on it.
        """
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        if not lock_exclusive(self._fd):
            self.close()
            raise busy(path.parent if out is None else out)
        content = _content(self._fd)
        self._lines, self._end = _whole_lines(content)
        self._work = self._lines[0] if self._lines else _work_of_0_1_0(content)

    def differences(self, identity: Mapping[str, Any]) -> list[str]:
        """What tells the work that the journal lists from this one; [] where it is the same or none was begun."""
        now = json.loads(json.dumps(identity))
        return [] if self._work is None else list(_differences(self._work, now, ""))

    def begin(self, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Go on with this work: the entries of earlier runs. A torn or damaged line is dropped, and all after it.

        Args:
            identity: what must be the same for the entries to be of use, as JSON data.

        Raises:
            OutputError: the journal lists other work.
        """
        if differences := self.differences(identity):
            raise _other_work(self._path, differences)
        os.ftruncate(self._fd, self._end)
        if not self._lines:
            self.append([identity])
        return self._lines[1:]

    def reset(self) -> None:
        """Forget every entry."""
        os.ftruncate(self._fd, 0)
        self._lines, self._end, self._work = [], 0, None

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add entries and return when they are on the disk."""
        text = b"".join(_line(json.dumps(entry, separators=(",", ":")).encode()) for entry in entries)
        write_from(self._fd, text, self._end)
        sync_data(self._fd)
        self._end += len(text)

    def close(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def work_of(path: Path) -> dict[str, Any]:
    """What the journal at a path is about, as JSON data; {} where there is none that can be read."""
    try:
        lines, _ = _whole_lines(path.read_bytes())
    except OSError:
        return {}
    return lines[0] if lines and isinstance(lines[0], dict) else {}


def _content(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return b"".join(iter(lambda: os.read(fd, 1 << 24), b"")) if size else b""


def busy(out: Path) -> OutputError:
    """Another process works on the same output."""
    todo = "Wait for it, or choose another --out."
    return OutputError(f"{out}: another run is writing here", todo=todo, where=Where(path=str(out)))


def _line(text: bytes) -> bytes:
    """The CRC-32 of a text in eight hexadecimal digits, and the text."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _whole_lines(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The lines up to the first one that is torn or not as it was written, and where they end."""
    lines: list[dict[str, Any]] = []
    end = 0
    for line in content.splitlines(keepends=True):
        text = line[9:-1]
        if line != _line(text):
            break
        entry = json.loads(text)
        lines.append(entry)
        end += len(line)
    return lines, end


def _work_of_0_1_0(content: bytes) -> dict[str, Any] | None:
    """What version 0.1.0, whose lines have no checksum, was about to do; what it had finished is not believed."""
    first, newline, _ = content.partition(b"\n")
    try:
        found = json.loads(first) if newline else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _differences(then: Any, now: Any, path: str) -> Iterable[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif then != now:
        yield f"{path} was {json.dumps(then)[:120]}, is {json.dumps(now)[:120]}"


def _other_work(path: Path, differences: list[str]) -> OutputError:
    more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
    return OutputError(
        f"{path.parent} holds an unfinished merge of other inputs: {'; '.join(differences[:5])}{more}",
        todo="Run the earlier command to finish it, or pass --overwrite to start over.",
        where=Where(path=str(path)),
    )
