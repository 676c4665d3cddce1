"""Whether a run may end in a folder: seen from outside, before anything is made. `check` and `merge` ask the same."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Self

from agentmerge.errors import OutputError, Where, shortened
from agentmerge.files.aside import Aside
from agentmerge.files.contents import IGNORED, Contents
from agentmerge.files.journal import JOURNAL
from agentmerge.files.mounts import is_mount, mount_points
from agentmerge.files.moved import PUBLISHING, Moved
from agentmerge.files.os_errors import output_errors

if TYPE_CHECKING:
    from pathlib import Path

ANOTHER = "Choose another with --out."
LONGEST = 255
"""Bytes of a name, where a system does not say."""


class Destination:
    """One OUT, links followed, with the names beside it that a run needs."""

    def __init__(self, out: Path) -> None:
        """Resolve the path.

        Raises:
            OutputError: the system refuses it: too long, or links in a circle.
        """
        with output_errors(out, ANOTHER):
            self.out = _resolved(out)
            self.mounted = is_mount(self.out)
        self.folder = (self.out if self.mounted else self.out.parent) / f".{self.out.name}.agentmerge"
        """The staging folder, which grows beside OUT, or inside it where OUT is a mount point."""
        self.aside = Aside(self.out)

    def checked(self, *, overwrite: bool) -> Self:
        """This, or OutputError where a run can't end here.

        Args:
            overwrite: what is there may be replaced.
        """
        with output_errors(self.out, ANOTHER):
            self._check_room()
            self._check_names()
            self._check_content(overwrite)
        return self

    def check_space(self, needed: int) -> None:
        """Raise OutputError unless `needed` more bytes fit."""
        free = free_bytes(self.folder)
        if free < needed:
            raise self.refusal(
                f"{needed:,} bytes are needed on this disk, {free:,} are free",
                "Free some space, or choose another disk with --out.",
            )

    def refusal(self, found: str, todo: str = ANOTHER, expected: str = "") -> OutputError:
        """An error about OUT."""
        return OutputError(f"{self.out}: {found}", expected=expected, todo=todo, where=Where(path=str(self.out)))

    def _check_room(self) -> None:
        """The folders that must be made, and the name of the longest beside OUT."""
        near = _nearest(self.folder)
        if not near.is_dir():
            raise self.refusal(f"can't be written: {near} is a file", expected="a folder")
        longest = os.pathconf(near, "PC_NAME_MAX") if hasattr(os, "pathconf") else LONGEST
        beside = len(os.fsencode(self.aside.folder.name)) - len(os.fsencode(self.out.name))
        for part in self.out.parts[len(near.parts) :]:
            room = longest - (beside if part == self.out.name else 0)
            if len(os.fsencode(part)) > room:
                raise self.refusal("can't be written: File name too long", expected=f"at most {room} bytes")
        if not os.access(near, os.W_OK | os.X_OK):
            raise self.refusal(f"can't be written: {near} lets nothing be made in it", expected="a folder of yours")

    def _check_names(self) -> None:
        """The folders beside OUT are ours, or not there."""
        if not self.mounted:
            self.aside.check()
        if not os.path.lexists(self.folder):
            return
        names = _names(self.folder) if self.folder.is_dir() and not self.folder.is_symlink() else None
        if names is None or (names and not {JOURNAL, PUBLISHING} & {*names}):
            raise self.refusal(f"{self.folder} is in the way: no run made it", "Move it away, or choose another --out.")

    def _check_content(self, overwrite: bool) -> None:
        waiting = None if self.mounted else self.aside.waiting
        if waiting is None and not os.path.lexists(self.out):
            return
        if not (waiting or self.out).is_dir():
            raise self.refusal("is a file", expected="a new or empty folder")
        if self.mounted:
            self._check_mounted()
            return
        found = _names(waiting or self.out)
        if found and not overwrite:
            raise self.refusal(
                f"the folder is not empty ({shortened(found)})",
                "Choose another with --out, or pass --overwrite to replace it once the new one is whole.",
            )
        inside = [path for path in mount_points() if self.out in path.parents]
        if inside or len(Contents.of(waiting or self.out).devices) > 1:
            names = f" ({shortened(map(str, sorted(inside)))})" if inside else ""
            raise self.refusal(f"something is mounted in it{names}, which can't be replaced")

    def strange(self) -> list[str]:
        """What lies in a mount point that no killed run moved there."""
        found = [name for name in _names(self.out) if name not in {self.folder.name, "lost+found"}]
        return Moved(self.folder, self.out).not_ours(found)

    def _check_mounted(self) -> None:
        if strange := self.strange():
            raise self.refusal(
                f"is a mount point and not empty ({shortened(strange)}), so it can't be replaced",
                "Empty it, or choose a folder inside it with --out.",
            )


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in IGNORED)


def free_bytes(path: Path) -> int:
    """Of the disk that a path is on, or will be."""
    above = (path.absolute(), *path.absolute().parents)
    return shutil.disk_usage(next(folder for folder in above if folder.exists())).free


def _nearest(path: Path) -> Path:
    """The path, or the first of the folders above it that is there."""
    while not os.path.lexists(path):
        path = path.parent
    return path


def _resolved(path: Path) -> Path:
    try:
        found = path.resolve()
        found.lstat()
    except FileNotFoundError:
        return found
    except (RuntimeError, ValueError) as error:  # links in a circle; a zero byte
        raise OSError(str(error)) from None
    return found
