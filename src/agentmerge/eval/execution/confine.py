"""What a process gives up before it runs a program that nobody has read. Plain Python, and Linux for most of it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_DUMPABLE, _CAPBSET_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVS = 4, 24, 36, 38  # prctl
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _RDONLY = 442, -100, 0x8000, 1
_NOSUID_NODEV, _BIND = 2 | 4, 4096 | 16384  # mount
HIDDEN = ("/root", "/home", "/run", "/srv", "/tmp", "/var/tmp", "/dev/shm")
"""Folders of others that a program has no business with, besides the home of who runs it."""


def keep_from_programs() -> None:
    """Nobody but root may trace this process or read its memory; orphans of what it starts become its children."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        _LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def seal(scratch: str, size_mb: int, needed: list[str]) -> bool:
    """Make every mount of this mount namespace read-only but `scratch`, which becomes an empty folder in memory.

    Args:
        scratch: a folder that is there.
        size_mb: most MiB that it takes.
        needed: paths that stay visible; of `hidden` folders nothing else does, nor /proc where it tells of processes
            of others.

    Returns:
        Whether it could be done; it takes Linux 5.12 and a mount namespace of one's own.
    """
    folders = hidden(needed)
    kept = [(path, os.open(path, os.O_PATH)) for path in within([*needed, scratch], folders)]
    covered = [folder for folder in folders if _cover(folder, "size=1m,mode=0755")]
    shown = [_show(path, source) for path, source in kept if within([path], covered)]
    own = Path("/proc/self").readlink() == Path(str(os.getpid())) or _cover("/proc", "size=4k,mode=0555")
    emptied = _cover(scratch, f"size={size_mb}m,mode=0755")
    done = covered == folders and all(shown) and own and emptied
    return _set("/", _AT_RECURSIVE, _RDONLY, 0) and _set(scratch, 0, 0, _RDONLY) and done


def hidden(needed: list[str]) -> list[str]:
    """The folders of HIDDEN and the home of who runs this, but for what is needed as a whole; none lies in another.

    A home is hidden whatever is needed.
    """
    own = home()
    places = [os.path.realpath(path) for path in needed]
    folders = {os.path.realpath(path) for path in (*HIDDEN, own) if Path(path).is_dir()} - {"/"}
    folders = {one for one in folders if one == own or not any(_lies_in(one, place) for place in places)}
    return sorted(one for one in folders if not any(_lies_in(one, other) for other in folders - {one}))


def home() -> str:
    """Of who runs this, links followed."""
    return os.path.realpath(os.environ.get("HOME", "/root"))


def holds_home(path: str) -> bool:
    """Whether a path is the home of who runs this, or a folder that it lies in."""
    return _lies_in(home(), os.path.realpath(path).rstrip("/"))


def within(paths: list[str], folders: list[str]) -> list[str]:
    """Those paths, and what they are links to, that lie in one of the folders; none lies within another of them."""
    found: list[str] = []
    for path in sorted({*paths, *map(os.path.realpath, paths)}):
        if any(_lies_in(path, folder) for folder in folders) and not any(_lies_in(path, other) for other in found):
            found.append(path)
    return found


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _cover(folder: str, options: str) -> bool:
    done = _LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(_NOSUID_NODEV), options.encode())
    return bool(done == 0)


def _show(path: str, source: int) -> bool:
    """Lay what was open at its old place in a folder that was covered since."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        Path(path).mkdir(parents=True, exist_ok=True)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    done = _LIBC.mount(f"/proc/self/fd/{source}".encode(), os.fsencode(path), None, ctypes.c_ulong(_BIND), None)
    os.close(source)
    return bool(done == 0)


def _set(path: str, flags: int, add: int, clear: int) -> bool:
    attributes = struct.pack("=QQQQ", add, clear, 0, 0)
    done = _LIBC.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    return bool(done == 0)


def limit(seconds: int, memory_mb: int, file_mb: int, processes: int | None) -> None:
    """Bound what this process and its children may use.

    Args:
        seconds: of wall time that the program has; it gets a little more of CPU time, since what ends it is a clock.
        memory_mb: MiB of address space beyond what this process has now.
        file_mb: MiB of one file.
        processes: and threads of its user; None leaves them.
    """
    _bound(resource.RLIMIT_CPU, seconds + 2)
    _bound(resource.RLIMIT_AS, _address_space() + memory_mb * 2**20)
    _bound(resource.RLIMIT_FSIZE, file_mb * 2**20)
    _bound(resource.RLIMIT_NOFILE, 64)
    _bound(resource.RLIMIT_CORE, 0)
    if processes is not None:
        _bound(resource.RLIMIT_NPROC, processes)


def _bound(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError, OSError):  # macOS knows no RLIMIT_AS that holds
        resource.setrlimit(what, (most, most))


def _address_space() -> int:
    """Bytes that this process has mapped, as far as the system tells."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    return 2**30


def give_up(user: int | None) -> None:
    """Drop all privileges for good.

    Args:
        user: whom to become, where this process may; None stays who it is.
    """
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
        for capability in range(64):
            _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if hasattr(_LIBC, "capset"):
        _LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))


def end_all(started: int) -> None:
    """End what a program left behind, its own process first.

    In a process namespace that this process leads, that is everybody else; elsewhere its session and, where the system
    says whose child a process is, all that came of it.
    """
    if os.getpid() == 1:
        _signal(-1)
    else:
        _signal(started)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(started, signal.SIGKILL)
        while orphans := _children():
            for child in orphans:
                _signal(child)
            _reap()
    _reap()


def _signal(process: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)


def _reap() -> None:
    """Wait for every child; all of them were sent the signal that nobody survives."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _children() -> list[int]:
    with suppress(OSError):
        return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    return []
