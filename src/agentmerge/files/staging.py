"""A folder that appears only when it is whole.

It grows beside OUT (inside it where OUT is a mount point, which can't be renamed) and takes OUT's name at the end.
Nothing that was not at OUT when the run began is ever replaced, moved or removed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING

from agentmerge.errors import OutputError, Where, shortened
from agentmerge.files.contents import Contents
from agentmerge.files.destination import Destination
from agentmerge.files.journal import busy
from agentmerge.files.moved import PUBLISHING, Moved, linked
from agentmerge.files.os_errors import output_errors, remedy
from agentmerge.files.positional import lock_folder, sync_data, sync_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


class Staging:
    """The staging folder of one OUT; a killed run finds it again by its name."""

    def __init__(self, out: Path, *, overwrite: bool = False) -> None:
        """Put an interrupted swap right, and see whether OUT's name is free and what lies there.

        Args:
            out: the folder to appear.
            overwrite: what is there now may be replaced.

        Raises:
            OutputError: OUT is taken, or another run is at work.
        """
        put_right(out)
        self._place = place = Destination(out)
        self.out, self.mounted, self.folder = place.out, place.mounted, place.folder
        self._publishing = self.folder / PUBLISHING
        self._held: int | None = None
        with output_errors(self.out):
            self._before = Contents() if self.mounted else Contents.of(self.out)
        place.checked(overwrite=overwrite)  # later than the look: what comes in between is nothing that was there

    def create(self) -> bool:
        """Make the folder, as open to others as the OUT that it will replace; False when an earlier run left it."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
            if not self.mounted:
                _make_alike(self.folder, self.out, 0o700)
        except FileExistsError:
            return False
        except OSError as error:
            todo = remedy(error) or "Choose another folder with --out."
            raise self._place.refusal(f"can't be written: {error}", todo) from None
        return True

    def lock(self) -> None:
        """Keep every other run out until `close`, as far as the file system can.

        Raises:
            OutputError: another run is at work.
        """
        self._held = _locked(self.folder, self.out)

    def close(self) -> None:
        """Let others in."""
        _unlock(self._held)
        self._held = None

    def check_space(self, needed: int) -> None:
        """Raise OutputError unless `needed` more bytes fit."""
        self._place.check_space(needed)

    def discard(self) -> None:
        """Remove the staging folder and everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self, keep: Collection[str]) -> None:
        """Remove every entry but those named."""
        for entry in self.folder.iterdir():
            if entry.name not in keep:
                _remove(entry)

    def publish(self, names: Sequence[str]) -> None:
        """Give OUT the named entries, in this order where they must be moved singly; the rest is dropped.

        A kill in here costs the work, never its truth: without its journal the next run writes everything again.

        Raises:
            OutputError: something came to OUT since the run began; the staging folder stays.
        """
        self._refuse_newer()
        if self.mounted:
            Moved(self.folder, self.out).take_back()
        self._publishing.touch()
        self.clear({*names, PUBLISHING})
        sync_folder(self.folder)
        try:
            if self.mounted:
                moved = Moved(self.folder, self.out)
                moving = [name for name in names if (self.folder / name).exists()]
                write_file(self._publishing, moved.note_of(moving))
                moved.move(moving)
                sync_folder(self.out)
                self.discard()
            else:
                self._swap()
        except FileExistsError as error:
            raise self._came(str(error.filename or "an entry")) from error

    def _swap(self) -> None:
        """Old OUT aside, new one into its place, old one away; a kill in between is put right from the note there."""
        aside = self._place.aside
        write_file(aside.make(), aside.note_of(self.folder, self._before))
        try:
            self._publishing.unlink()
            if os.path.lexists(self.out):
                found = self._before.newer(aside.take())
                if found:
                    raise self._came(shortened(found))
            _make_alike(self.folder, aside.old, 0)
            _rename_to_nothing(self.folder, self.out)
        except BaseException:
            with suppress(OSError):
                self._publishing.touch()
                aside.undo()
            raise
        sync_folder(self.out.parent)
        aside.end(self._before)

    def _refuse_newer(self) -> None:
        """Raise OutputError where something came to OUT since the run began, before anything is given up for it."""
        found = self._place.strange() if self.mounted else self._before.newer(Contents.of(self.out))
        if found:
            raise self._came(shortened(filter(None, found)) or "the folder itself")

    def _came(self, found: str) -> OutputError:
        return self._place.refusal(
            f"something came there while this run was at work ({found}), and is not replaced",
            "Move it away and run the same command again: what is finished is kept. Or choose another with --out.",
        )


def put_right(out: Path) -> None:
    """Put right what a run left that was killed while OUT got its new content; nothing where none did.

    Raises:
        OutputError: another run is at work, or somebody made another OUT since.
    """
    place = Destination(out)
    with output_errors(place.out):
        if place.mounted:
            Moved(place.folder, place.out).settle()
        elif os.path.lexists(place.aside.folder):
            held = _locked(place.folder, place.out)
            try:
                place.aside.settle(place.folder, PUBLISHING)
            finally:
                _unlock(held)


def _locked(folder: Path, out: Path) -> int | None:
    """What keeps others from working in a staging folder; None where it is not there or can't be locked."""
    if not folder.is_dir():
        return None
    held = lock_folder(folder)
    if held is None:
        raise busy(out)
    return held if held >= 0 else None


def _unlock(held: int | None) -> None:
    if held is not None:
        os.close(held)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and return when it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())


def replace_file(path: Path, data: bytes, *, new: bool = False) -> None:
    """Give a file this content all at once: whatever goes wrong, what was there before is still whole.

    Where `path` is a link, what it leads to is replaced; what is no regular file (a pipe, /dev/stdout) is written to.

    Args:
        path: of the file.
        data: its content.
        new: whether no file may be there.

    Raises:
        OutputError: it can't be written there.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        target = path.resolve()
        beside = target.with_name(f".agentmerge-{token_hex(8)}")
        try:
            write_file(beside, data)
            _make_alike(beside, target, 0)
            if not new or not linked(beside, target):
                beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        sync_folder(target.parent)
    except FileExistsError as error:
        where = Where(path=str(path))
        raise OutputError(f"{path}: exists already", todo="Choose another place.", where=where) from error
    except OSError as error:
        raise OutputError(
            f"{path}: can't be written: {error.strerror or error}",
            todo=remedy(error) or "Choose another place.",
            where=Where(path=str(path)),
        ) from error


def _make_alike(path: Path, old: Path, more: int) -> None:
    """Give a path the owner, group and mode of another, as far as the system lets us; nothing where that is not there.

    Args:
        path: what is changed.
        old: whose they are.
        more: bits of the mode that it has besides.
    """
    try:
        state = old.stat()
    except OSError:
        return
    for owner, group in ((-1, state.st_gid), (state.st_uid, -1)):
        with suppress(OSError):
            os.chown(path, owner, group)
    with suppress(OSError):
        path.chmod(stat.S_IMODE(state.st_mode) | more)


def _rename_to_nothing(path: Path, name: Path) -> None:
    """Rename a folder to a name that is free; of what comes there in this very moment an empty folder is replaced."""
    if os.path.lexists(name):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(name))
    try:
        path.rename(name)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST}:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(name)) from error
        raise


def allocated(path: Path) -> int:
    """Bytes of disk that a file holds already; 0 when it is not there."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return 0
    return min(state.st_size, getattr(state, "st_blocks", 0) * 512)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
