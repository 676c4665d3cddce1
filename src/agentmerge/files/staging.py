"""A folder that appears only when it is whole.

It grows beside OUT (inside it where OUT is a mount point, which can't be renamed) and takes OUT's name at the end.
"""

from __future__ import annotations

import shutil
from secrets import token_hex
from typing import TYPE_CHECKING

from agentmerge.errors import OutputError, Where, shortened
from agentmerge.files.positional import sync_data, sync_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

IGNORED = {"lost+found", ".DS_Store"}
"""What may lie in an otherwise empty OUT."""


class Staging:
    """The staging folder of one OUT; a killed run finds it again by its name."""

    def __init__(self, out: Path, *, overwrite: bool = False) -> None:
        """Put an interrupted swap right, and see whether OUT's name is free.

        Args:
            out: the folder to appear.
            overwrite: it may be there already.

        Raises:
            OutputError: OUT is taken.
        """
        self.out = out.resolve()
        self.mounted = self.out.is_mount()
        self.folder = (self.out if self.mounted else self.out.parent) / f".{self.out.name}.agentmerge"
        self._aside = self.out.parent / f".{self.out.name}.agentmerge-old"
        self._publishing = self.folder / ".publishing"
        self._put_swap_right()
        self._check_name(overwrite)

    def create(self) -> bool:
        """Make the folder; False when an earlier run left it."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
        except FileExistsError:
            return False
        except OSError as error:
            raise self._refusal(f"can't be written: {error}", "Choose another folder with --out.") from None
        return True

    def check_space(self, needed: int) -> None:
        """Raise OutputError unless `needed` more bytes fit."""
        free = shutil.disk_usage(self.folder if self.folder.exists() else self.folder.parent).free
        if free < needed:
            raise self._refusal(
                f"{needed:,} bytes are needed on this disk, {free:,} are free",
                "Free some space, or choose another disk with --out.",
            )

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
        """
        self._publishing.touch()
        self.clear({*names, self._publishing.name})
        sync_folder(self.folder)
        if self.mounted:
            self._move_entries(names)
        else:
            self._swap()

    def _swap(self) -> None:
        self._publishing.unlink()
        if self.out.exists():
            self.out.rename(self._aside)
        self.folder.rename(self.out)
        sync_folder(self.out.parent)
        _remove(self._aside)

    def _move_entries(self, names: Sequence[str]) -> None:
        moving = [name for name in names if (self.folder / name).exists()]
        for name in reversed(moving):  # what a killed run moved already: never half of it beside half of this one
            _remove(self.out / name)
        for name in moving:
            (self.folder / name).rename(self.out / name)
        sync_folder(self.out)
        self.discard()

    def _put_swap_right(self) -> None:
        """A run killed between its two renames left OUT aside; a later kill left both.

        An empty OUT is not what the swap put there: somebody made it since.
        """
        if not self._aside.exists():
            return
        if self.out.exists() and not (self.out.is_dir() and not any(self.out.iterdir())):
            _remove(self._aside)
        else:
            self._aside.rename(self.out)

    def _check_name(self, overwrite: bool) -> None:
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise self._refusal("is a file", "Choose another with --out.", "a new or empty folder")
        found = sorted(entry.name for entry in self.out.iterdir() if entry.name not in IGNORED)
        if found and self.mounted and not self._publishing.exists() and found != [self.folder.name]:
            raise self._refusal(
                f"is a mount point and not empty ({shortened(found)}), so it can't be replaced",
                "Empty it, or choose a folder inside it with --out.",
            )
        if found and not self.mounted and not overwrite:
            raise self._refusal(
                f"the folder is not empty ({shortened(found)})",
                "Choose another with --out, or pass --overwrite to replace it once the new one is whole.",
            )

    def _refusal(self, found: str, todo: str, expected: str = "") -> OutputError:
        where = Where(path=str(self.out))
        return OutputError(f"{self.out}: {found}", expected=expected, todo=todo, where=where)


def refuse_inside(out: Path, folder: Path, what: str) -> None:
    """Raise OutputError where `out` is a folder that is read, or one of them lies inside the other.

    Args:
        out: of the output.
        folder: that is read.
        what: it is, for the message: "the source of agent 'x'".
    """
    target, folder = out.resolve(), folder.resolve()
    if target == folder or folder in target.parents or target in folder.parents:
        inside = f"{out}: lies in, or holds, {what} ({folder})"
        raise OutputError(inside, todo="Choose another --out.", where=Where(path=str(out)))


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and return when it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Give a file this content all at once: whatever goes wrong, what was there before is still whole.

    Where `path` is a link, what it leads to is replaced; what is no regular file (a pipe, /dev/stdout) is written to.

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
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        sync_folder(target.parent)
    except OSError as error:
        raise OutputError(
            f"{path}: can't be written: {error.strerror or error}",
            todo="Choose another place.",
            where=Where(path=str(path)),
        ) from error


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
