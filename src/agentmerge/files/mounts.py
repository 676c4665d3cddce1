"""Which folders are mount points, the bound ones of the same file system included."""

from __future__ import annotations

import os
import re
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
"""Linux; elsewhere a mount point shows by its device alone."""
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def is_mount(path: Path) -> bool:
    """Whether something is mounted at a path without links."""
    return path.is_mount() or os.fsencode(path) in _names()


def mount_points() -> frozenset[Path]:
    """Every mount point that this system tells of."""
    return frozenset(Path(os.fsdecode(name)) for name in _names())


def _names() -> frozenset[bytes]:
    try:
        lines = TABLE.read_bytes().splitlines()
    except OSError:
        return frozenset()
    names = (fields[4] for line in lines if len(fields := line.split(b" ")) > 4)
    return frozenset(_ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), name) for name in names)
