"""Run many programs on many tests, as many at a time as there are processors, in children that never hold a model."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, Problem
from agentmerge.eval.execution.children import Child
from agentmerge.eval.execution.isolation import Isolation, isolation
from agentmerge.machine import available_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agentmerge.eval.execution.trial import Limits, Trial, Verdict

REFUSED = Problem(
    "code: scoring runs programs that the model wrote, on this machine",
    "leave to do so",
    "Read docs/evaluation.md on what keeps them in, then add --allow-code-execution.",
)


@dataclass(frozen=True)
class Executed:
    """What came of programs."""

    verdicts: dict[str, Verdict]
    """By `Trial.key`."""
    facts: dict[str, Any]
    """What was in force: isolation, network, files, processes, user; {} where nothing had to be run."""


def execute(
    trials: Iterable[Trial],
    limits: Limits,
    *,
    allowed: bool,
    within: Isolation | None = None,
    known: Mapping[str, Verdict] | None = None,
    done: Callable[[str, Verdict], None] | None = None,
    children: int | None = None,
) -> Executed:
    """Run every trial once, those with a known verdict not at all.

    Args:
        trials: programs on tests; equal ones are run once.
        limits: of every program.
        allowed: whether the user gave leave to run programs that a model wrote.
        within: their isolation; None takes the best that works here.
        known: verdicts by key, of an earlier run.
        done: told every new verdict as it comes, one at a time.
        children: processes at a time; None takes as many as there are processors.

    Raises:
        EvalError: not allowed, or children can't be started here.
    """
    todo = {trial.key(limits): trial for trial in trials}
    verdicts = {key: known[key] for key in todo if key in known} if known else {}
    todo = {key: trial for key, trial in todo.items() if key not in verdicts}
    if not todo:
        return Executed(verdicts, {})
    if not allowed:
        raise EvalError(REFUSED)
    within = within or isolation()
    executors = sorted({trial.executor for trial in todo.values()})
    count = min(len(todo), children or available_cpus())
    team = _Team(iter(todo.items()), verdicts, done or (lambda *_: None))
    workers = [Child(within, limits, executors, slot) for slot in range(count)]
    try:
        workers[0].check()
        team.run(workers)
        return Executed(verdicts, workers[0].facts)
    finally:
        for worker in workers:
            worker.close()


class _Team:
    """Children that take trials from one list."""

    def __init__(
        self, trials: Iterator[tuple[str, Trial]], verdicts: dict[str, Verdict], done: Callable[[str, Verdict], None]
    ) -> None:
        self._trials, self._verdicts, self._done, self._lock = trials, verdicts, done, Lock()
        self._error: BaseException | None = None

    def run(self, workers: list[Child]) -> None:
        """Until all is done or something fails; a thread each, which waits most of the time."""
        threads = [Thread(target=self._serve, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:
            self._error = error
            raise
        if self._error:
            raise self._error

    def _serve(self, worker: Child) -> None:
        try:
            while self._error is None:
                with self._lock:
                    key, trial = next(self._trials, (None, None))
                if key is None or trial is None:
                    return
                verdict = worker.ask(trial)
                if self._error is not None:  # children are being ended, which is no verdict
                    return
                with self._lock:
                    self._verdicts[key] = verdict
                    self._done(key, verdict)
        except BaseException as error:
            self._error = self._error or error
