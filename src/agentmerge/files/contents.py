"""What lies in a folder at one moment: tells later what came since, and removes nothing else."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

IGNORED = frozenset({".DS_Store"})
"""What a file browser leaves anywhere; it counts as nothing."""


@dataclass(frozen=True)
class Contents:
    """Every entry below a path and what tells it from a later one of that name; links are not followed."""

    entries: Mapping[str, list[int]] = field(default_factory=dict)
    """By relative path, "" being the path itself: kind and inode; of all but folders also size and mtime_ns."""
    devices: frozenset[int] = frozenset()
    """More than one where something is mounted inside."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Look; nothing there is nothing seen.

        Raises:
            OSError: a folder can't be read.
        """
        found = dict(_walk(path, ""))
        return cls({name: _facts(state) for name, state in found.items()}, frozenset(s.st_dev for s in found.values()))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `entries` became as JSON.

        Raises:
            ValueError: it is something else.
        """
        if not isinstance(data, dict) or not all(isinstance(facts, list) for facts in data.values()):
            raise ValueError("expected the entries of a folder")
        return cls(data)

    @property
    def names(self) -> list[str]:
        """What lies in the folder itself, sorted."""
        return sorted(name for name in self.entries if name and "/" not in name)

    def part(self, name: str) -> Contents:
        """The contents of one entry of the folder."""
        inside = {path: facts for path, facts in self.entries.items() if path == name or path.startswith(f"{name}/")}
        return Contents({path[len(name) + 1 :]: facts for path, facts in inside.items()}, self.devices)

    def newer(self, now: Contents) -> list[str]:
        """What `now` holds that was not here, or not as it is."""
        return sorted(name for name, facts in now.entries.items() if self.entries.get(name) != facts)

    def remove(self, path: Path) -> bool:
        """Remove these entries below `path` and nothing that came or changed since; whether nothing is left there."""
        for name in sorted(self.entries, key=lambda name: (name.count("/") + bool(name), name), reverse=True):
            entry = path / name if name else path
            with suppress(OSError):
                state = entry.lstat()
                if _facts(state) != self.entries[name]:
                    continue
                if stat.S_ISDIR(state.st_mode):
                    _remove_folder(entry)
                else:
                    entry.unlink()
        return not os.path.lexists(path)


def _walk(path: Path, name: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        state = path.lstat()
    except FileNotFoundError:
        return
    yield name, state
    if not stat.S_ISDIR(state.st_mode):
        return
    with os.scandir(path) as entries:
        inside = sorted(entry.name for entry in entries if entry.name not in IGNORED)
    for entry in inside:
        yield from _walk(path / entry, f"{name}/{entry}" if name else entry)


def _facts(state: os.stat_result) -> list[int]:
    kind = stat.S_IFMT(state.st_mode)
    return [kind, state.st_ino] if stat.S_ISDIR(kind) else [kind, state.st_ino, state.st_size, state.st_mtime_ns]


def _remove_folder(path: Path) -> None:
    for name in IGNORED:
        (path / name).unlink(missing_ok=True)
    path.rmdir()
