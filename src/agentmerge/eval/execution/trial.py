"""One program on one test, and what came of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import Field

from agentmerge.frozen import Settings

Verdict = Literal["passed", "wrong", "timeout", "error", "killed"]
"""error: it raised, or is no Python; killed: its process ended without a word, as by os._exit or a signal."""
Executor = Literal["lcb", "script"]
"""lcb: livecodebench's, which makes a function of the program; script: the program runs as __main__, as CURE does."""
Comparator = Literal["lcb", "cure"]
"""lcb: line by line, numbers as decimals; cure: equal once every run of whitespace is a space."""


class Limits(Settings):
    """What a program may use; beyond it, it fails and nothing else."""

    memory_mb: int = Field(default=1024, ge=16)
    """MiB of address space beyond the interpreter's own."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads, itself among them."""
    file_mb: int = Field(default=16, ge=1)
    """MiB of one file, and of its folder where that is in memory."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A program, what it reads from standard input, and what it must print."""

    code: str
    stdin: str
    expected: str
    seconds: float = 1.0
    """Of wall time; rounded up to whole ones, which is what the executors' alarm knows."""
    executor: Executor = "lcb"
    comparator: Comparator = "lcb"

    def key(self, limits: Limits) -> str:
        """SHA-256 of all that its verdict depends on."""
        text = json.dumps([asdict(self), limits.model_dump()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
