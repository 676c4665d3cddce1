"""The parent's end of a child process that runs programs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

from agentmerge.errors import EvalError
from agentmerge.eval.execution.isolation import Isolation, environment, needed, others, spare_user
from agentmerge.eval.execution.trial import Executor, Limits, Trial, Verdict

START = 60.0
"""Seconds in which a child must have started; importing a harness from a slow disk takes a while."""
OVERDUE = 10.0
"""Seconds that a child gets beyond a program's own and `child.GRACE`, before it is ended itself."""
_RIGHT = "import colorsys, sched\nprint(int(input()) + 1)"
"""A program that is right; nobody imported these modules before."""


class Child:
    """A process that runs programs, one at a time; it is started anew when it does not answer."""

    def __init__(self, within: Isolation, limits: Limits, executors: list[Executor], slot: int) -> None:
        """Nothing is started until something is asked.

        Args:
            within: its isolation.
            limits: of its programs.
            executors: that it must know.
            slot: another one for every child at a time.
        """
        self._within, self._limits, self._executors = within, limits, executors
        self._user = spare_user((os.getpid() * 64 + slot) % 1024)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._buffer, self._count = b"", 0
        self.facts: dict[str, Any] = {}
        """What its programs are kept in by; known once it was started."""

    def check(self) -> None:
        """Run a program that is right.

        Raises:
            EvalError: it does not come out right.
        """
        for executor in self._executors:
            verdict = self.ask(Trial(_RIGHT, "1\n", "2\n", 5.0, executor))
            if verdict != "passed":
                found = f"code: a program that is right came out as '{verdict}' in a child process ({executor})"
                todo = f"Is {sys.base_prefix} readable for every user, and is memory_mb large enough?"
                raise EvalError(found, todo=todo)

    def ask(self, trial: Trial) -> Verdict:
        """Run one program; a child that does not answer is ended, and where the next does not either, it is killed.

        Raises:
            EvalError: no child can be started.
        """
        for _ in range(2):
            if self._process is None:
                self._start()
            self._count += 1
            line = json.dumps({"number": self._count, **{name: getattr(trial, name) for name in Trial.__slots__}})
            answer = self._exchange(line, ceil(trial.seconds) + OVERDUE)
            if answer is not None:
                verdict: Verdict = answer["verdict"]
                return verdict
            self.close()
        return "killed"

    def close(self) -> None:
        """End it and all that it started, and remove its folder."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._process, self._folder, self._buffer = None, None, b""

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agentmerge-programs-", ignore_cleanup_errors=True)
        scratch = self._folder.name
        Path(scratch).chmod(0o711)
        process_limit = others(self._user, self._within.kind)
        config = {
            "scratch": scratch,
            "limits": self._limits.model_dump(),
            "executors": self._executors,
            "user": self._user,
            "others": process_limit,
            "mounts": self._within.mounts,
            "sealed": self._within.sealed,
            "needed": needed(),
        }
        child = [sys.executable, "-P", "-m", "agentmerge.eval.execution.child", json.dumps(config)]
        size = 4 * self._limits.file_mb * 2**20
        self._process = subprocess.Popen(
            self._within.command(scratch, size, child),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd="/",
            start_new_session=True,
        )
        self._greet(process_limit)

    def _greet(self, process_limit: int | None) -> None:
        hello = self._exchange(None, START)
        if hello is None:
            self._process.kill()  # type: ignore[union-attr]
            said = self._process.stderr.read().decode(errors="replace").strip()  # type: ignore[union-attr]
            self.close()
            raise EvalError(f"code: no child process can be started: {said[-400:] or 'it says nothing'}")
        sealed = "read-only" if self._within.kind == "bubblewrap" else hello["files"]
        self.facts = {
            "isolation": self._within.kind,
            "network": self._within.network,
            "files": sealed,
            "processes": None if process_limit is None else self._limits.processes,
            "user": "a spare one" if self._user is not None else "the user's own",
        }

    def _exchange(self, line: str | None, seconds: float) -> dict[str, Any] | None:
        """Say a line and hear one; None where there is no answer in time."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        deadline = time.monotonic() + seconds
        try:
            if line is not None:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
            while b"\n" not in self._buffer:
                if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    return None
                more = os.read(process.stdout.fileno(), 2**16)
                if not more:
                    return None
                self._buffer += more
        except OSError:
            return None
        said, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(said)
        return answer
