"""What this process may use of the machine. Knows nothing of merging."""

from __future__ import annotations

import os


def available_cpus() -> int:
    """CPUs that this process may use: what it is pinned to, where the system tells, else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
