"""What this system offers to keep a program in: namespaces, bubblewrap, or limits and another user alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import agentmerge
from agentmerge.errors import EvalError
from agentmerge.eval.execution.confine import hidden, holds_home, within

Kind = Literal["namespaces", "bubblewrap", "limits"]
Wish = Literal["auto", "namespaces", "bubblewrap", "limits"]
"""auto takes the first that works here, in the order of `Kind`."""
_ALL = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
_OF_A_USER = ("--user", "--map-root-user")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SEAL = """import sys
from agentmerge.eval.execution.confine import seal
sys.exit(not seal(sys.argv[1], 1, sys.argv[2:]))"""
"""A child that only tries whether it can."""
_SPARE = 2_000_000_000
"""The first of the user numbers that programs get where this process is root; nobody has them."""


@dataclass(frozen=True)
class Isolation:
    """How a child process is started, and what therefore holds of it."""

    kind: Kind
    prefix: tuple[str, ...] = ()
    """Goes before its command line; "{scratch}" and "{bytes}" stand for its folder and the most that it takes."""
    mounts: bool = False
    """Whether it has a mount namespace that it may seal itself."""
    sealed: bool = False
    """Whether that was seen to work here; a child that then can't do it ends."""

    @property
    def network(self) -> Literal["none", "open"]:
        """Whether a program reaches one."""
        return "open" if self.kind == "limits" else "none"

    def command(self, scratch: str, size: int, child: list[str]) -> list[str]:
        """The command line of a child.

        Args:
            scratch: its folder.
            size: bytes that the folder may take, where it is in memory.
            child: the command line without isolation.
        """
        return [part.format(scratch=scratch, bytes=size) for part in self.prefix] + child


@cache
def isolation(wish: Wish = "auto") -> Isolation:
    """The first isolation of that kind that works here; it is tried out, since systems forbid what they have.

    Raises:
        EvalError: that kind does not work here.
    """
    for candidate in _candidates():
        loose = candidate.mounts and not candidate.sealed
        if (wish == "auto" or (wish == candidate.kind and not loose)) and _works(candidate):
            return candidate
    todo = {
        "namespaces": "It takes Linux 5.12, the command `unshare`, and a system that lets this user make namespaces "
        "and mount in them.",
        "bubblewrap": "Install bubblewrap (the command `bwrap`); it is not used by root.",
    }
    raise EvalError(f"code: isolation '{wish}' does not work here", todo=todo[wish] + " Or set isolation to auto.")


def _candidates() -> list[Isolation]:
    """From the strictest to none; a container may forbid to mount /proc, or anything.

    Namespaces whose files can't be sealed have no network still, which is more than limits alone.
    """
    found: list[Isolation] = []
    loose: list[Isolation] = []
    root, unshare, bwrap = os.geteuid() == 0, shutil.which("unshare"), shutil.which("bwrap")
    if unshare:
        user = () if root else _OF_A_USER
        loose = [
            Isolation("namespaces", (unshare, *user, *_ALL, *proc, "--"), mounts=True)
            for proc in (("--mount-proc",), ())
        ]
        found += [replace(one, sealed=True) for one in loose]
    if bwrap and not root:
        found.append(Isolation("bubblewrap", _bubblewrap(bwrap)))
    return [*found, *loose, Isolation("limits")]


def _bubblewrap(bwrap: str) -> tuple[str, ...]:
    folders = hidden(needed())
    covered = [part for folder in folders for part in ("--tmpfs", folder)]
    shown = [part for path in within(needed(), folders) for part in ("--ro-bind", path, path)]
    return (
        *(bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *covered, *shown),
        *("--size", "{bytes}", "--tmpfs", "{scratch}"),
        *(part for folder in folders for part in ("--remount-ro", folder)),
        "--",
    )


def _works(candidate: Isolation) -> bool:
    """Whether a child starts, and seals its files where it is to."""
    child = [sys.executable, "-I", "-S", "-c", ""]
    try:
        with tempfile.TemporaryDirectory(prefix="agentmerge-programs-", ignore_cleanup_errors=True) as scratch:
            if candidate.sealed:
                child = [sys.executable, "-P", "-c", _SEAL, scratch, *needed()]
            command = candidate.command(scratch, 2**20, child)
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=20,
                check=False,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
            return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def environment() -> dict[str, str]:
    """What a child knows of this process's environment: where modules are; no tokens, no proxies, nothing else."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": os.environ.get("HOME", "/root"),
        "LANG": "C.UTF-8",
        **dict.fromkeys(_THREADS, "1"),
    }


def needed() -> list[str]:
    """What a child reads of the file system: the interpreter and everything that can be imported.

    The working folder, which Python puts among those that modules are imported from, is left out unless agentmerge
    itself lies there, and a home always: what is in it is nobody's business.
    """
    own = Path(agentmerge.__file__).resolve().parent
    with suppress(OSError):
        here = Path.cwd()
        modules = [path for path in sys.path if path and (Path(path).resolve() != here or here == own.parent)]
        return _shown([sys.prefix, sys.base_prefix, sys.executable, *modules, str(own)])
    return _shown([sys.prefix, sys.base_prefix, sys.executable, *sys.path, str(own)])


def _shown(paths: list[str]) -> list[str]:
    return [path for path in paths if path and Path(path).exists() and not holds_home(path)]


def spare_user(slot: int) -> int | None:
    """A user number for programs that nobody has, another one for every slot below 1,024, where this process is root.

    Linux counts no processes of root, so a limit on them holds for others alone.
    """
    if os.geteuid() != 0:
        return None
    try:
        ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        ranges = [(0, 0, 2**32 - 1)]
    first, _, count = max(ranges, key=lambda range_: range_[2])
    if count > _SPARE + 1024:
        return _SPARE + slot
    return first + count - 2 - slot if count > 4096 else None


def others(user: int | None, kind: Kind) -> int | None:
    """Processes and threads that the limit on them counts beside a program's own; None where that is not known.

    Args:
        user: the spare user that programs are, None for this process's own.
        kind: of their isolation; a user namespace of its own counts apart since Linux 5.14.
    """
    if user is not None or (kind != "limits" and _linux() >= (5, 14)):
        return 0
    if sys.platform != "linux":
        return None
    return sum(_tasks(process) for process in Path("/proc").iterdir() if process.name.isdigit())


def _tasks(process: Path) -> int:
    try:
        return sum(1 for _ in (process / "task").iterdir()) if process.stat().st_uid == os.getuid() else 0
    except OSError:
        return 0


def _linux() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
