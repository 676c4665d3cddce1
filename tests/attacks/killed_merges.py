"""Merge in a process that dies where it is told to; a script that tests/attacks/test_kill.py talks to.

Every line of standard input is a job as JSON; a forked child does it, so that nothing but the files survives it:

    recipe, out, overwrite   what to merge
    die                      [target, call, when]: os._exit at the call-th call of "module:Class.function", "before" or
                             "after" it, or "within" os.pwrite: half of its buffer is written
    delay                    seconds until SIGKILL; null for none

Finished blocks are committed after every ten of them, whatever the time, so that every call has its number. Nothing is
synced: a killed process leaves its writes to the system, unlike a power cut.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentmerge import MergeError, merge
from agentmerge.engine import runner
from agentmerge.files import reading
from agentmerge.files.positional import PAGE
from agentmerge.kernels import cpu

DIED = 99


def main() -> None:
    """Answer every job with its exit status, the error and the passes that were begun."""
    cpu.load("count", "ram")
    reading.load()
    os.fsync = os.fdatasync = lambda fd: None  # type: ignore[assignment]
    for number, line in enumerate(sys.stdin):
        job = json.loads(line)
        if not number:
            _warm_up(job["recipe"])
        print(json.dumps(answer(job)), flush=True)


def _warm_up(recipe: Any) -> None:
    """What every child would otherwise import and compile again: one merge, elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        merge(recipe, Path(folder) / "out")


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait, report."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(job, writing)
        finally:
            os._exit(3)
    os.close(writing)
    if job.get("delay") is not None:
        time.sleep(job["delay"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    found = [json.loads(line) for line in lines]
    return {
        "status": os.waitstatus_to_exitcode(status),
        "phases": [entry for entry in found if isinstance(entry, list)],
        "error": next((entry for entry in found if isinstance(entry, str)), ""),
    }


def work(job: dict[str, Any], writing: int) -> None:
    """The child: merge, or die on the way."""

    def tell(entry: Any) -> None:
        os.write(writing, (json.dumps(entry) + "\n").encode())

    class Notes:
        def begin(self, phase: str, total: int, **_: float) -> None:
            tell([phase, total])

        def advance(self, nbytes: int, **_: float) -> None:
            pass

    runner.time, runner.COMMIT_SECONDS = SimpleNamespace(monotonic=itertools.count().__next__), 10
    if job.get("die"):
        plant(*job["die"])
    try:
        merge(job["recipe"], Path(job["out"]), overwrite=job.get("overwrite", False), watch=Notes())
    except MergeError as error:
        tell(str(error))
        os._exit(2)
    except BaseException as error:
        tell(repr(error))
        os._exit(1)
    os._exit(0)


def plant(target: str, call: int, when: str) -> None:
    """Let the process die at one call."""
    module, _, path = target.partition(":")
    owner: Any = import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    original, lock, count = getattr(owner, name), threading.Lock(), 0

    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        with lock:
            count += 1
            now = count == call
        if now and when == "before":
            os._exit(DIED)
        if now and when == "within":
            fd, buffer, offset = arguments
            half = len(buffer) // 2
            original(fd, buffer[: half if half < PAGE else half // PAGE * PAGE], offset)
            os._exit(DIED)
        result = original(*arguments, **options)
        if now:
            os._exit(DIED)
        return result

    setattr(owner, name, deadly)


if __name__ == "__main__":
    main()
