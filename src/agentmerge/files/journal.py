"""A locked list of what is finished, one JSON line each, that survives a kill."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from agentmerge.errors import OutputError, Where
from agentmerge.files.positional import lock_exclusive, sync_data, write_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


class Journal:
    """Opened for one run at a time; `entries` holds what earlier runs of the same work finished."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and lock it.

        Raises:
            OutputError: another process works on it.
        """
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not lock_exclusive(self._fd):
            self.close()
            todo = "Wait for it, or choose another --out."
            raise OutputError(f"{path.parent}: another run is writing here", todo=todo, where=Where(path=str(path)))
        self._lines, self._end = _whole_lines(_content(self._fd))

    def differences(self, identity: Mapping[str, Any]) -> list[str]:
        """What tells the work that the journal lists from this one; [] where it is the same or none was begun."""
        now = json.loads(json.dumps(identity))
        return list(_differences(self._lines[0], now, "")) if self._lines else []

    def begin(self, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Go on with this work: the entries of earlier runs. A torn last line is dropped.

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
        self._lines, self._end = [], 0

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add entries and return when they are on the disk."""
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries).encode()
        write_from(self._fd, text, self._end)
        sync_data(self._fd)
        self._end += len(text)

    def close(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _content(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return b"".join(iter(lambda: os.read(fd, 1 << 24), b"")) if size else b""


def _whole_lines(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The lines up to the first torn one, and where they end."""
    lines: list[dict[str, Any]] = []
    end = 0
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        lines.append(entry)
        end += len(line)
    return lines, end


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
