"""A child process that runs programs, one at a time, each in a process of its own that is ended afterwards.

It is started with a JSON object as its argument, says in a line what holds of it, and then answers trials, a line each,
until its input ends. `grade` is imported before the first program; of agentmerge it needs this room alone.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import shutil
import sys
import time
from math import ceil
from pathlib import Path
from typing import IO, Any, NoReturn

from agentmerge.eval.execution import confine

GRACE = 2.0
"""Seconds that a program may take beyond its own, until its process is ended from outside."""
_ANSWER = 2**16
"""Most bytes of a verdict."""


def main(argument: str) -> None:
    """Answer trials from standard input; see the module."""
    config = json.loads(argument)
    trials = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    _lead_nowhere(0, 1)
    confine.keep_from_programs()
    sealed = config["mounts"] and confine.seal(config["scratch"], 4 * config["limits"]["file_mb"], config["needed"])
    if config["sealed"] and not sealed:
        raise SystemExit("its files can't be sealed, as they could before")
    import_harness(config["executors"])
    _answer(answers, {"files": "read-only" if sealed else "of the user", "namespace": os.getpid() == 1})
    _lead_nowhere(2)
    gc.collect()
    gc.freeze()  # a collection in a program's process would copy the pages of all that is there now
    for line in trials:
        _answer(answers, run(json.loads(line), config, trials.fileno()))


def import_harness(executors: list[str]) -> None:
    """What programs are run by is imported here, so that no program waits for it."""
    from agentmerge.eval.execution import grade

    if "lcb" in executors:
        grade.prepared()


def run(trial: dict[str, Any], config: dict[str, Any], parent: int) -> dict[str, Any]:
    """Run one program in a process and an empty folder of its own, and end all that it started.

    Args:
        trial: the program and its test.
        config: what this child was started with.
        parent: where trials come from; once nobody is there, this child ends.
    """
    folder = f"{config['scratch']}/{trial['number']}"
    Path(folder).mkdir(0o700)
    if config["user"] is not None:
        os.chown(folder, config["user"], config["user"])
    reading, writing = os.pipe()
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        _be_program(trial, config, folder, writing)
    os.close(writing)
    deadline = began + ceil(trial["seconds"]) + GRACE
    try:
        said = _read_line(reading, parent, deadline)
        late = time.monotonic() >= deadline
    finally:
        confine.end_all(process)
        os.close(reading)
        shutil.rmtree(folder, ignore_errors=True)
    return {"verdict": said or ("timeout" if late else "killed"), "seconds": round(time.monotonic() - began, 3)}


def _read_line(source: int, parent: int, deadline: float) -> str | None:
    """A verdict, if there comes one in time; what is none is taken for nothing.

    Raises:
        SystemExit: the parent is gone.
    """
    from agentmerge.eval.execution.grade import VERDICTS

    watch = select.poll()
    watch.register(source, select.POLLIN)
    watch.register(parent, 0)  # tells that its other end is closed, without being asked
    content = b""
    while b"\n" not in content and len(content) < _ANSWER:
        ready = dict(watch.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if parent in ready:
            raise SystemExit
        more = os.read(source, _ANSWER) if ready else b""
        if not more:
            return None
        content += more
    said = content.split(b"\n")[0].decode(errors="replace")
    return said if said in VERDICTS else None


def _be_program(trial: dict[str, Any], config: dict[str, Any], folder: str, writing: int) -> NoReturn:
    """The program's process; it never returns."""
    from agentmerge.eval.execution import grade

    write, leave, said = os.write, os._exit, b"error"
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(writing, 3)
        os.closerange(4, 2**16)
        os.environ.clear()
        os.environ.update({"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
        limits = config["limits"]
        processes = None if config["others"] is None else limits["processes"] + config["others"]
        confine.limit(ceil(trial["seconds"]), limits["memory_mb"], limits["file_mb"], processes)
        confine.give_up(config["user"])
        random.seed(0)
        said = grade.graded(trial).encode()
    except BaseException:
        pass
    finally:
        write(3, said + b"\n")
        leave(0)


def _lead_nowhere(*streams: int) -> None:
    """Of standard streams, which a program must not share; what it prints is caught before it comes there."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _answer(answers: IO[str], entry: dict[str, Any]) -> None:
    answers.write(json.dumps(entry) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
