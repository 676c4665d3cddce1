"""What this process may use of the machine, and how to get what is not there. Knows nothing of merging."""

from __future__ import annotations

import os
import resource
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use, "quota period" in microseconds; Linux, cgroup 2."""
MEMORY = Path("/sys/fs/cgroup/memory.max")
"""Bytes that a container may use, or "max"."""


def how_to_install(extra: str) -> str:
    """The commands that bring what a part of this package needs besides."""
    return f"pip install 'agentmerge[{extra}]', or in a clone of agentmerge pip install -e '.[{extra}]'"


def available_cpus() -> int:
    """CPUs that this process may use: those it is pinned to, at most its container's quota, where the system tells."""
    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, QUOTA.read_text().split())  # "max" is none
    except (OSError, ValueError):
        return pinned
    return max(1, min(pinned, ceil(quota / period)))


def descriptors() -> int:
    """How many files this process may have open, by the limit that holds now."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if most == resource.RLIM_INFINITY else most


def memory_bytes() -> int:
    """Memory of the machine, or of the container where that has less."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(MEMORY.read_text()))
    except (OSError, ValueError):
        return installed


def run_all(
    work: Callable[[T], None], items: Iterable[T], workers: int, done: Callable[[T], None] | None = None
) -> None:
    """Do the work on every item, in `workers` threads, in any order, a few items ahead.

    Args:
        work: called in the threads.
        items: one for each call.
        workers: threads.
        done: called in this thread, with every item that is finished.

    Raises:
        What the work raises; then, and on an interrupt, every thread stops after the item in hand.
    """
    waiting: dict[Future[None], T] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting[pool.submit(work, item)] = item
                if len(waiting) == 2 * workers:
                    _finish_one(waiting, done)
            while waiting:
                _finish_one(waiting, done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finish_one(waiting: dict[Future[None], T], done: Callable[[T], None] | None) -> None:
    """Wait for one of them at least, and take those that are finished out."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        item = waiting.pop(future)
        future.result()
        if done is not None:
            done(item)
