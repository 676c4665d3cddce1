"""Entries moved one by one into a mount point, which can't be renamed; a note in the staging folder tells ours."""

from __future__ import annotations

import errno
import json
import os
from stat import S_ISDIR
from typing import TYPE_CHECKING

from agentmerge.files.contents import Contents

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PUBLISHING = ".publishing"
"""The file in a staging folder that is about to become OUT and needs its journal no more; here it is the note."""


class Moved:
    """What runs moved from a staging folder into OUT."""

    def __init__(self, folder: Path, out: Path) -> None:
        self._folder, self._out, self._note = folder, out, folder / PUBLISHING

    def not_ours(self, names: Iterable[str]) -> list[str]:
        """Those entries of OUT that no killed run moved there, or that changed since."""
        note = self._noted()
        return [name for name in names if not self._is_ours(name, note)]

    def settle(self) -> None:
        """A killed move left a file both its names: it keeps the one in OUT, or writing anew would change that."""
        for name in self._noted().names:
            staged, place = self._folder / name, self._out / name
            if staged.is_file() and place.is_file() and staged.samefile(place):
                staged.unlink()

    def take_back(self) -> None:
        """Remove what a killed run moved, last first: never half of it beside half of this one."""
        note = self._noted()
        for name in reversed(note.names):
            if self._is_ours(name, note):
                Contents.of(self._out / name).remove(self._out / name)

    def note_of(self, names: Iterable[str]) -> bytes:
        """The note of what is about to be moved."""
        parts = {name: Contents.of(self._folder / name) for name in names}
        found = ((name, path, facts) for name, part in parts.items() for path, facts in part.entries.items())
        return json.dumps({"/".join(filter(None, (name, path))): facts for name, path, facts in found}).encode()

    def move(self, names: Iterable[str]) -> None:
        """Move entries in this order.

        Raises:
            FileExistsError: OUT has an entry of such a name by now.
        """
        for name in names:
            staged, place = self._folder / name, self._out / name
            if staged.is_dir():
                place.mkdir()  # an empty folder may be replaced, and only that
                staged.rename(place)
            elif linked(staged, place):
                staged.unlink()
            else:
                staged.rename(place)

    def _noted(self) -> Contents:
        try:
            return Contents.from_json(json.loads(self._note.read_bytes()))
        except (OSError, ValueError):
            return Contents()

    def _is_ours(self, name: str, note: Contents) -> bool:
        """Whether it is as noted, or the empty folder that is made for one."""
        now, then = Contents.of(self._out / name).entries, note.part(name)
        if not then.entries:
            return False
        return not then.newer(Contents(now)) or (len(now) == 1 and S_ISDIR(now[""][0]) and S_ISDIR(then.entries[""][0]))


def linked(staged: Path, place: Path) -> bool:
    """Give a file its place by a second name, which replaces nothing; False where the file system has no links."""
    try:
        place.hardlink_to(staged)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from None
        return False
    return True
