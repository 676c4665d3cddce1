"""A folder that appears only when it is complete. Knows nothing of what is written into it."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentmerge.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def staged(out: Path, needed: int) -> Iterator[Path]:
    """Give a staging folder that becomes `out` at the end of the with block, or vanishes where that fails.

    It lies beside `out`, or inside it where `out` is a mount point and can't be replaced.

    Args:
        out: where the folder shall appear; missing or empty.
        needed: bytes that will be written.

    Raises:
        OutputError: `out` is taken, the disk lacks the space, or the system refuses to write.
    """
    out = out.resolve()
    _check_free_name(out)
    mounted = out.is_mount()
    staging = (out if mounted else out.parent) / f".{out.name}.synth-{os.getpid()}"
    try:
        staging.parent.mkdir(parents=True, exist_ok=True)
        _check_free_space(staging.parent, needed)
        staging.mkdir()
        try:
            yield staging
            _publish(staging, out, mounted)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{out}: can't be written: {error}. Choose another folder with --out.") from error


def _check_free_name(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: is a file, expected a new or empty folder. Choose another name with --out.")
    if out.exists() and any(out.iterdir()):
        raise OutputError(f"{out}: the folder is not empty. Remove it, or choose another with --out.")


def _check_free_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(
            f"{folder}: {needed:,} bytes are needed, {free:,} are free. "
            "Free some space, choose another disk with --out, a smaller shape or fewer agents."
        )


def _publish(staging: Path, out: Path, mounted: bool) -> None:
    if not mounted:
        staging.replace(out)
        return
    for entry in sorted(staging.iterdir()):
        entry.replace(out / entry.name)
