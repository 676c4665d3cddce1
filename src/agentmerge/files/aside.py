"""Where OUT's earlier content waits while a new folder takes its place; a killed swap is put right from there.

The folder is ours by the note in it, which tells the new folder and everything that may be removed in the end.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import OutputError, Where
from agentmerge.files.contents import Contents

if TYPE_CHECKING:
    from pathlib import Path

NOTE, OLD = ".agentmerge-swap.json", "old"


@dataclass(frozen=True, slots=True)
class _Note:
    new: list[int]
    """Device and inode of the folder that takes OUT's name."""
    before: Contents
    """Of OUT when the run began."""


class Aside:
    """The folder beside OUT in which its earlier content waits, as `old`."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.folder = out.parent / f".{out.name}.agentmerge-old"
        self.old, self._note = self.folder / OLD, self.folder / NOTE

    def check(self) -> None:
        """Raise OutputError where something else has the folder's name."""
        if os.path.lexists(self.folder) and self._found() is None and not self._begun():
            raise OutputError(
                f"{self._out}: {self.folder} is in the way: none that this version made",
                todo="If an interrupted run of version 0.1.0 left it, it is what was at OUT: give it that name back. "
                "Else move it away, or choose another --out.",
                where=Where(path=str(self.folder)),
            )

    @property
    def waiting(self) -> Path | None:
        """What a killed run left here that is OUT's, which it lacks."""
        return self.old if self._found() and self.old.exists() and not _holds_anything(self._out) else None

    def make(self) -> Path:
        """Make the folder, before anything is moved; where its note goes."""
        with suppress(FileExistsError):  # one of a run that was killed right here
            self.folder.mkdir(mode=0o700)
        return self._note

    def note_of(self, new: Path, before: Contents) -> bytes:
        """The note.

        Args:
            new: the folder that will take OUT's name.
            before: what may be removed in the end.
        """
        return json.dumps({"new": identity(new), "before": before.entries}).encode()

    def take(self) -> Contents:
        """Move OUT here; what was moved."""
        self._out.rename(self.old)
        return Contents.of(self.old)

    def undo(self) -> None:
        """Give OUT back what was moved here, where its name is still free."""
        if self.old.exists() and not os.path.lexists(self._out):
            self.old.rename(self._out)
        if not self.old.exists():
            self._drop()

    def end(self, before: Contents) -> None:
        """The new folder is in its place: remove what was in the old one when the run began; anything else stays."""
        if before.remove(self.old):
            self._drop()

    def settle(self, staging: Path, mark: str) -> None:
        """Put right what a killed run left: OUT has its old content again, or only the new one.

        Args:
            staging: the folder that was to take OUT's name; it is marked as ours again.
            mark: the name of an empty file that does so.

        Raises:
            OutputError: somebody made another OUT since.
        """
        note = self._found()
        if note is None:
            if self._begun():
                self._drop()
            return
        if identity(staging) == note.new:
            (staging / mark).touch()
        if self.old.exists():
            if identity(self._out) == note.new:
                note.before.remove(self.old)
            elif not _holds_anything(self._out):
                with suppress(FileNotFoundError):
                    self._out.rmdir()
                self.old.rename(self._out)
        if self.old.exists():
            raise OutputError(
                f"{self._out}: an interrupted run left in {self.old} what was there before or came meanwhile",
                todo="Look at it, move it to where you want it, and run again.",
                where=Where(path=str(self.old)),
            )
        self._drop()

    def _drop(self) -> None:
        self._note.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _begun(self) -> bool:
        """Whether a run was killed while it made the folder: nothing waits in it."""
        return self._holds_at_most(NOTE)

    def _holds_at_most(self, *names: str) -> bool:
        if self.folder.is_symlink() or not self.folder.is_dir():
            return False
        return {path.name for path in self.folder.iterdir()} <= {*names}

    def _found(self) -> _Note | None:
        """The note; None where there is none, which makes the folder somebody's."""
        if not self._holds_at_most(NOTE, OLD):
            return None
        try:
            data = json.loads(self._note.read_bytes())
            return _Note(data["new"], Contents.from_json(data["before"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None


def identity(path: Path) -> list[int]:
    """Device and inode; [] of nothing."""
    try:
        state = path.lstat()
    except OSError:
        return []
    return [state.st_dev, state.st_ino]


def _holds_anything(path: Path) -> bool:
    """Whether something lies at a path that is more than an empty folder."""
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path)
