"""Bytes at offsets of files, and what the OS is asked to do with them, where it can."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.tensors import Array

if TYPE_CHECKING:
    from pathlib import Path

Buffer = memoryview | bytearray | bytes | Array

MOST_PER_CALL = 0x7FFFF000  # bytes; Linux moves at most 2,147,479,552 in one call, macOS refuses 2^31
COPIED_PER_CALL = 1 << 24  # bytes; os.pread returns a copy, so keep it small
PAGE = max(4096, mmap.PAGESIZE)  # bytes; 64 KiB on some ARM servers, where two ways must not meet in one page
HUGE = 1 << 22  # bytes, from which on a buffer asks for huge pages, as numpy does


class ShortRead(EOFError):
    """The file ended inside a read; internal, the reader tells the user which file and tensor."""

    def __init__(self, got: int, wanted: int) -> None:
        super().__init__(f"{got} of {wanted} bytes were there")
        self.got = got
        self.wanted = wanted


def open_to_read(path: Path) -> int:
    """Open a regular file for reading: its descriptor.

    Raises:
        OSError: it can't be opened, or is a folder, pipe or device.
    """
    # O_NONBLOCK: or a named pipe would wait for its writer forever
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_into(fd: int, buffer: Buffer, offset: int) -> None:
    """Fill the whole buffer from `offset` on; Python itself repeats a call that a signal interrupts.

    Args:
        fd: a file opened for reading.
        buffer: writable and contiguous.
        offset: bytes from the file's start.

    Raises:
        ShortRead: the file ends before the buffer is full.
        OSError: the read failed.
    """
    view = flat_bytes(buffer)
    done = 0
    while done < len(view):
        count = _read_some(fd, view[done : done + MOST_PER_CALL], offset + done)
        if count == 0:
            raise ShortRead(done, len(view))
        done += count


def _read_some(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], offset)
    data = os.pread(fd, min(len(view), COPIED_PER_CALL), offset)
    view[: len(data)] = data
    return len(data)


def write_from(fd: int, buffer: Buffer, offset: int) -> None:
    """Write the whole contiguous buffer at `offset` bytes from the file's start.

    Raises:
        OSError: the write failed, for example ENOSPC.
    """
    view = flat_bytes(buffer)
    done = 0
    while done < len(view):
        count = os.pwrite(fd, view[done : done + MOST_PER_CALL], offset + done)
        if count == 0:
            raise OSError(errno.EIO, f"wrote {done} of {len(view)} bytes, then no more")
        done += count


def open_direct(path: Path) -> int | None:
    """Open an existing file for writing past the page cache: its descriptor; None where that can't be done."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None


def write_past_cache(cached: int, direct: int, buffer: Array, offset: int) -> None:
    """Write a contiguous array, its whole pages past the page cache, where that saves a copy and no input is evicted.

    Args:
        cached: the file, opened for ordinary writing: takes what does not fill a page.
        direct: the same file from `open_direct`.
        buffer: starts in memory as far behind a page boundary as `offset` does in the file, or is written ordinarily.
        offset: bytes from the file's start.

    Raises:
        OSError: a write failed; EINVAL where this file system wants larger units than pages.
    """
    view = flat_bytes(buffer)
    head = min(-offset % PAGE, len(view))
    tail = head + (len(view) - head) // PAGE * PAGE
    if (buffer.ctypes.data - offset) % PAGE or tail == head:
        write_from(cached, view, offset)
        return
    write_from(cached, view[:head], offset)
    write_from(direct, view[head:tail], offset + head)
    write_from(cached, view[tail:], offset + tail)


def flat_bytes(buffer: Buffer) -> memoryview:
    """The same memory as one row of bytes, also for dtypes that have no buffer protocol (bfloat16).

    Raises:
        ValueError: an array that is not contiguous, which could only be copied.
    """
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ValueError(f"expected a contiguous array, found strides {buffer.strides}")
        return buffer.reshape(-1).view(np.uint8).data
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def preallocate(fd: int, size: int) -> None:
    """Make the file `size` bytes long and, where the file system can, reserve its disk space now.

    Raises:
        OSError: ENOSPC, EFBIG: the disk or the file system can't hold it.
    """
    os.ftruncate(fd, size)
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as problem:
        if problem.errno not in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}:
            raise


def advise_sequential(fd: int) -> None:
    """Tell the OS that the file will be read from front to back; does nothing where it can't be told."""
    _advise(fd, 0, 0, "POSIX_FADV_SEQUENTIAL")


def advise_soon(fd: int, offset: int, length: int) -> None:
    """Tell the OS that these bytes will be read next, so that it may begin; does nothing where it can't be told."""
    _advise(fd, offset, length, "POSIX_FADV_WILLNEED")


def _advise(fd: int, offset: int, length: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # advice that is not taken changes nothing
            os.posix_fadvise(fd, offset, length, getattr(os, advice))


def sync_data(fd: int) -> None:
    """Return only when the file's bytes and its length are on the disk.

    Raises:
        OSError: they may not be there.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync leaves the data in the drive's cache
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError as problem:
            if problem.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOTTY}:
                raise
    getattr(os, "fdatasync", os.fsync)(fd)


def sync_folder(path: Path) -> None:
    """Return only when the folder's names (created, renamed, removed files) are on the disk.

    Raises:
        OSError: they may not be there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as problem:
        if problem.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some network file systems
            raise
    finally:
        os.close(fd)


def lock_exclusive(fd: int) -> bool:
    """Lock the file for this opening of it, until closed: False, without waiting, when another holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_folder(path: Path) -> int | None:
    """Lock a folder until its descriptor, which is returned, is closed; None when another holds it.

    -1 where the file system locks no folders, as some network file systems.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        locked = lock_exclusive(fd)
    except OSError:
        os.close(fd)
        return -1
    if not locked:
        os.close(fd)
        return None
    return fd


def aligned_empty(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A zeroed buffer, uint8 [nbytes], that starts at a page boundary; the system has its memory back when it goes.

    (The allocator would keep a large array's: it takes what was freed once for what is often wanted.)

    Raises:
        MemoryError: there is not so much.
    """
    try:
        pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes:,} bytes: {error.strerror}") from error
    if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, nbytes)
