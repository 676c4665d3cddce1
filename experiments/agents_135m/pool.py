"""Processes that stay alive and do one job after the other: one that dies or hangs loses its job, not the sweep."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Done:
    """What came of a job."""

    worker: Worker
    job: Any
    value: Any = None
    error: str | None = None


class Worker:
    """A process of its own.

    Args:
        kind: what it is for.
        begin: makes, in the process, what does a job.
        given: arguments of `begin`; both must pickle.
        environment: set before anything is imported.
        limit: seconds that a job may take; the first one `patience` more.
    """

    patience = 90.0

    def __init__(
        self,
        kind: str,
        begin: Callable[..., Callable[[Any], Any]],
        given: Sequence[Any],
        environment: Mapping[str, str],
        limit: float,
    ):
        self.kind, self._begin, self._given = kind, begin, tuple(given)
        self._environment, self._limit = dict(environment), limit
        self.job: Any = None
        self._start()

    def _start(self) -> None:
        self._ours, theirs = CONTEXT.Pipe()
        self._started, self._jobs = 0.0, 0
        kept = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)  # the child must see them before it imports anything
        try:
            self._process = CONTEXT.Process(target=_serve, args=(theirs, self._begin, self._given), daemon=True)
            self._process.start()
        finally:
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()

    def give(self, job: Any) -> None:
        """A job to a process that has none."""
        self.job, self._started = job, time.monotonic()
        with contextlib.suppress(OSError):  # it has died; `finished` tells
            self._ours.send(job)

    @property
    def late(self) -> bool:
        """Whether its job takes too long."""
        allowed = self._limit + (0 if self._jobs else self.patience)
        return self.job is not None and time.monotonic() - self._started > allowed

    def finished(self) -> Done | None:
        """Its job's result, or that it has died or was stopped for being late; then a new process takes its place."""
        job = self.job
        if self._ours.poll():
            try:
                value, error = self._ours.recv()
            except (EOFError, OSError):
                self._process.join(5)  # for its exit code
                return self._again("the process ended")
            self._jobs, self.job = self._jobs + 1, None
            return Done(self, job, value, error)
        return self._again(f"no result after {time.monotonic() - self._started:.0f} s") if self.late else None

    def restart(self) -> None:
        """A new process in its place."""
        self.stop()
        self._start()

    def _again(self, error: str) -> Done:
        code = self._process.exitcode
        job, self.job = self.job, None
        self.restart()
        return Done(self, job, None, f"{error} (exit code {code})" if code is not None else error)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join(5)
        self._ours.close()

    @property
    def waits_on(self) -> connection.Connection[Any, Any]:
        """Readable when there is something to collect."""
        return self._ours


def collect(workers: Sequence[Worker], seconds: float) -> list[Done]:
    """What has come of jobs, after waiting for at most so long."""
    busy = [worker for worker in workers if worker.job is not None]
    connection.wait([worker.waits_on for worker in busy], seconds)
    return [done for worker in busy if (done := worker.finished())]


def _serve(pipe: connection.Connection[Any, Any], begin: Callable[..., Callable[[Any], Any]], given: Any) -> None:
    """Do what comes through the pipe until it closes."""
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            job = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        answer: tuple[Any, str | None]
        try:
            work = work or begin(*given)
            answer = work(job), None
        except Exception as error:
            answer = None, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
        try:
            pipe.send(answer)
        except OSError:
            return
