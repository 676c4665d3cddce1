"""Write blocks of a planned checkpoint so that a kill loses nothing that was finished."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from agentmerge.files.drafts import DRAFTS, Drafts
from agentmerge.files.journal import JOURNAL, Journal
from agentmerge.files.open_files import OpenFiles
from agentmerge.files.os_errors import output_errors
from agentmerge.files.positional import (
    open_direct,
    preallocate,
    sync_data,
    write_from,
    write_past_cache,
)
from agentmerge.files.staging import Staging, allocated, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agentmerge.files.drafts import Slot
    from agentmerge.files.layout import Layout, Place
    from agentmerge.tensors import Array

REFUSED = ".refused.txt"
PARTIAL = ".partial"
LAST = ("config.json", "model.safetensors.index.json")
"""What makes a folder look like a model: published after everything else."""


class Writer:
    """Shards of known size, written at offsets from any thread; entries tell what was finished before."""

    def __init__(
        self,
        out: Path,
        layout: Layout,
        identity: Mapping[str, Any],
        *,
        overwrite: bool = False,
        drafts: Mapping[str, Slot] | None = None,
    ) -> None:
        """Resume or begin: reserve the disk space and write the headers.

        Args:
            out: the folder to appear.
            layout: every shard to the byte.
            identity: what the result depends on, as JSON data; a run of another identity does not resume.
            overwrite: replace what is at `out` at the end, and start over where an unfinished merge can't resume.
            drafts: what may be kept until the end.

        Raises:
            OutputError: OUT is taken or in use, an unfinished merge of something else is there, or no space is left.
        """
        with output_errors(out):
            self._staging = Staging(out, overwrite=overwrite)
        self._layout = layout
        self._dirty = set(range(len(layout.shards)))
        self._lock = threading.Lock()
        self._turn = tuple(threading.Lock() for _ in layout.shards)
        self._fds = OpenFiles(self._open_shard, most=32)
        self._direct = OpenFiles(self._open_direct, most=32)
        self._past_cache = True
        self._slots = drafts or {}
        self.drafts: Drafts | None = None
        """What is kept until the end."""
        with output_errors(self._staging.out):
            self._fresh = self._staging.create()
            self._staging.lock()
            try:
                self._journal = Journal(self.folder / JOURNAL, self._staging.out)
            except BaseException:
                self._staging.close()
                raise
            try:
                self.entries = self._begin(identity, overwrite)
                self._reserve()
            except BaseException:
                self.abandon()
                raise

    @property
    def folder(self) -> Path:
        """The staging folder."""
        return self._staging.folder

    def write(self, place: Place, start: int, array: Array) -> None:
        """Put elements [start, start + array.size) of a tensor in their place; from any thread."""
        shard, offset = self._layout.shards[place.shard].name, place.offset + start * array.dtype.itemsize
        with output_errors(self._staging.out), self._fds.borrow(shard) as fd:
            if not self._write_direct(shard, fd, array, offset):
                # The kernel lets one thread at a time write into a file; waiting here costs less than spinning there.
                with self._turn[place.shard]:
                    write_from(fd, array, offset)
        with self._lock:  # only now: a commit that began before the write has not synced it
            self._dirty.add(place.shard)

    def _write_direct(self, shard: str, fd: int, array: Array, offset: int) -> bool:
        """Past the page cache; False, from then on, where the file system can't."""
        if not self._past_cache:
            return False
        try:
            with self._direct.borrow(shard) as direct:
                write_past_cache(fd, direct, array, offset)
        except _NotDirect:
            self._past_cache = False
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._past_cache = False
        return self._past_cache

    def commit(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Record finished work, once its data is on the disk."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        with output_errors(self._staging.out):
            for shard in sorted(dirty):
                with self._fds.borrow(self._layout.shards[shard].name) as fd:
                    sync_data(fd)
            self._journal.append(entries)

    def refuse(self, reason: str) -> None:
        """Give the disk space back and mark the work as refused: it starts over next time."""
        with suppress(OSError):  # a full disk must not hide the reason
            write_file(self.folder / REFUSED, reason.encode())
        self.close()
        for path in (self.folder / DRAFTS, *self.folder.glob(f"*{PARTIAL}")):
            path.unlink(missing_ok=True)

    def finish(self, files: Mapping[str, bytes]) -> None:
        """Add the side files and let OUT appear; config and index come last.

        Raises:
            OutputError: the disk or the system refuses.
        """
        with output_errors(self._staging.out):
            self.commit(())
            self._close_drafts()
            ordered = sorted(files, key=lambda name: (name in LAST, name))
            for name in ordered:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_file(self.folder / name, files[name])
            for shard in self._layout.shards:
                partial = self.folder / (shard.name + PARTIAL)
                if partial.exists():
                    partial.rename(self.folder / shard.name)
            tops = dict.fromkeys(name.split("/")[0] for name in ordered)
            self._staging.publish([*(shard.name for shard in self._layout.shards), *tops])

    def abandon(self) -> None:
        """Let go of everything before anything was written: the staging folder stays only if an earlier run left it."""
        self.close()
        if self._fresh:
            self._staging.discard()

    def close(self) -> None:
        """Let go of the files and the lock; what was committed stays."""
        self._fds.close()
        self._direct.close()
        self._close_drafts()
        self._journal.close()
        self._staging.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, identity: Mapping[str, Any], overwrite: bool) -> list[dict[str, Any]]:
        if (self.folder / REFUSED).exists() or (overwrite and self._journal.differences(identity)):
            self._staging.clear({JOURNAL})
            self._journal.reset()
        return self._journal.begin(identity)

    def _reserve(self) -> None:
        """Take the disk space of every shard and write its header."""
        paths = [self.folder / (shard.name + PARTIAL) for shard in self._layout.shards]
        for shard, path in zip(self._layout.shards, paths, strict=True):
            if (self.folder / shard.name).exists():  # a run was killed while it finished
                (self.folder / shard.name).rename(path)
        self._staging.check_space(missing_bytes(self.folder, self._layout, self._slots))
        if self._slots:
            self.drafts = Drafts(self.folder / DRAFTS, self._slots)
        for shard in self._layout.shards:
            with self._fds.borrow(shard.name) as fd:
                preallocate(fd, shard.size)
                write_from(fd, shard.header, 0)

    def _close_drafts(self) -> None:
        if self.drafts is not None:
            self.drafts.close()

    def _open_direct(self, name: str) -> int:
        fd = open_direct(self.folder / (name + PARTIAL))
        if fd is None:
            raise _NotDirect
        return fd

    def _open_shard(self, name: str) -> int:
        return os.open(self.folder / (name + PARTIAL), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def missing_bytes(folder: Path, layout: Layout, drafts: Mapping[str, Slot]) -> int:
    """How much more disk shards and drafts need than a staging folder holds of them already."""
    kept = sum(slot.nbytes for slot in drafts.values()) - (allocated(folder / DRAFTS) if drafts else 0)
    return kept + sum(shard.size - allocated(folder / (shard.name + PARTIAL)) for shard in layout.shards)


class _NotDirect(Exception):
    """The file system writes through its page cache only."""
