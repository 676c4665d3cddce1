"""What a run reads, and every link on the way to it: none of that may be replaced, moved or removed."""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.errors import OutputError, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_LINKS = 64
"""On the way to one file; systems follow fewer."""
Id = tuple[int, int]
"""Device and inode: a folder that is bound in two places has two paths and one of these."""


class Protected:
    """Files and folders that are read, by path and by inode."""

    def __init__(self) -> None:
        self._stops: dict[Path, str] = {}
        self._folders: dict[Path | Id, str] = {}
        self._plain: set[Path] = set()
        """What was looked at and is no link: files of one folder share the way to it."""
        self._walked: set[tuple[Path, bool]] = set()

    def add_file(self, path: Path, what: str) -> None:
        """Protect a file and the links that lead to it.

        Args:
            path: as it is read.
            what: it is, for messages: "the source of agent 'x'".
        """
        self._add(self._way(path), what)

    def _add(self, way: list[Path], what: str) -> None:
        for stop in way:
            self._stops.setdefault(stop, what)

    def add_folder(self, path: Path, what: str, *, whole: bool = True) -> None:
        """Protect a folder and all that it holds or that links in it lead to; nothing may be made in it either.

        Args:
            path: as it is read.
            what: it is, for messages.
            whole: False where only the entries of the folder itself are read.
        """
        if (path, whole) in self._walked:
            return
        self._walked.add((path, whole))
        way = self._way(path)
        self._add(way, what)
        real = way[-1]
        self._folders.setdefault(real, what)
        self._folders.setdefault(_id(real) or real, what)
        for entry, state in _inside(path, deep=whole):
            if stat.S_ISLNK(state.st_mode):
                self.add_file(entry, what)
            elif stat.S_ISDIR(state.st_mode):
                self._folders.setdefault((state.st_dev, state.st_ino), what)

    def refuse(self, out: Path, *places: Path) -> None:
        """Raise OutputError where a folder that will be written or replaced touches what is read.

        Args:
            out: the folder, as the user wrote it.
            places: where it really is, and the folders that a run has beside it.
        """
        for place in places:
            if found := self._holding(place) or self._held(place):
                stop, what = found
                todo, where = "Choose another --out.", Where(path=str(out))
                raise OutputError(f"{out}: lies in, or holds, {what} ({stop})", todo=todo, where=where)

    def refuse_file(self, path: Path) -> None:
        """Raise OutputError where a file that will be replaced is one that is read, or leads to one."""
        for stop in self._way(path):
            known = [found for found in self._stops if found == stop or _id(found) == _id(stop) is not None]
            held = self._held(stop) if os.path.lexists(stop) else None
            what = self._stops[known[0]] if known else held[1] if held else None
            if what is not None:
                found = f"{path}: is {what}, or lies in it, and would be replaced"
                raise OutputError(found, todo="Choose another place.", where=Where(path=str(path)))

    def _holding(self, place: Path) -> tuple[Path, str] | None:
        """What is read and would go with this folder; of several hard links to a file one is enough to keep it."""
        for stop, what in self._stops.items():
            if place in (stop, *stop.parents):
                return stop, what
        inside = Counter(_id(place) for place, _ in _inside(place, deep=True))
        inside[_id(place)] += 1
        del inside[None]
        for stop, what in self._stops.items() if inside else ():
            if any(_id(folder) in inside for folder in stop.parents):
                return stop, what
            if inside[_id(stop)] and inside[_id(stop)] >= (1 if stop.is_dir() else stop.lstat().st_nlink):
                return stop, what
        return None

    def _held(self, place: Path) -> tuple[Path, str] | None:
        """What is read and would hold this place."""
        for folder in place.parents:
            what = self._folders.get(folder) or self._folders.get(_id(folder) or (0, 0))
            if what is not None:
                return folder, what
        return None

    def _way(self, path: Path) -> list[Path]:
        """Every link on the way to a path, each where it really lies, and then what the path leads to."""
        found: list[Path] = []
        at, left = Path("/"), list(reversed(path.absolute().parts))
        while left:
            step = at / left.pop()  # of an absolute part that part alone
            if step.name == "..":
                at = at.parent
            elif len(found) < MOST_LINKS and self._is_link(step):
                found.append(step)
                left.extend(reversed(step.readlink().parts))
            else:
                at = step
        return [*found, at]

    def _is_link(self, path: Path) -> bool:
        if path in self._plain:
            return False
        if path.is_symlink():
            return True
        self._plain.add(path)
        return False


def _inside(folder: Path, *, deep: bool) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything in a folder, links not followed; what can't be looked at is passed over."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            state = entry.lstat()
        except OSError:
            continue
        yield entry, state
        if deep and stat.S_ISDIR(state.st_mode):
            yield from _inside(entry, deep=True)


def _id(path: Path) -> Id | None:
    """Device and inode of what lies there itself; None of nothing, or where a file system has no inodes."""
    try:
        state = path.lstat()
    except OSError:
        return None
    return (state.st_dev, state.st_ino) if state.st_ino else None
