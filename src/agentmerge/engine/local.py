"""Run a plan with threads of this process: each reads a block, computes it and writes it. Knows no method."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from agentmerge.engine.blocks import Buffers, map_block, read_stack
from agentmerge.engine.checks import check_block
from agentmerge.engine.ledger import Answers, Ledger, pieces
from agentmerge.survey.copied import Copied
from agentmerge.survey.observe import observe
from agentmerge.survey.rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentmerge.engine.blocks import Ahead
    from agentmerge.engine.plan import Plan, Task
    from agentmerge.engine.runner import Target
    from agentmerge.files.writer import Writer
    from agentmerge.progress import Watch
    from agentmerge.survey.statistic import Foldable, Statistic, Survey
    from agentmerge.tensors import Block

    Result = tuple["Job", list[Answers]] | BaseException
    Work = Callable[["Job", Ahead, Buffers], list[Answers]]

MANY, PAUSE = 64, 0.002
"""While so many results are missing, so many seconds pass between two looks: a thread that woke for each of them would
take the interpreter's lock from the workers all the time."""
COMMIT_SECONDS = 2.0
"""How much finished work a kill may cost at most; each commit waits for the disk."""


class LocalRunner:
    """Threads: reading, compiled kernels and writing all leave the interpreter's lock."""

    def fold(
        self,
        plan: Plan,
        statistics: Sequence[Statistic[Any]],
        phase: str,
        writer: Writer | None,
        watch: Watch,
    ) -> Survey:
        """See Runner.fold."""

        def work(job: Job, ahead: Ahead, buffers: Buffers) -> list[Answers]:
            return [observe(statistics, read_stack(plan, job.task, job.block, buffers, ahead))]

        ledger = _ledger(phase, statistics, (), writer)
        return _run(plan, plan.merged, work, [ledger], watch)[0]

    def map(
        self, targets: Sequence[Target], survey: Survey, statistics: Sequence[Statistic[Any]], watch: Watch
    ) -> tuple[Survey, ...]:
        """See Runner.map."""
        plan = targets[0].plan
        tasks = [{task.tensor.name: task for task in target.plan.tasks} for target in targets]

        def work(job: Job, ahead: Ahead, buffers: Buffers) -> list[Answers]:
            stack = None if job.task.method is None else read_stack(plan, job.task, job.block, buffers, ahead)
            seen = {} if stack is None else observe(statistics, stack)
            answers = []
            for k in job.pending:
                target, task = targets[k], tasks[k][job.task.tensor.name]
                stored, found = map_block(target.plan, task, job.block, stack, survey, buffers, ahead)
                for place in task.places:
                    target.writer.write(place, job.block.start, stored)
                answers.append(seen | found)
            return answers

        ledgers = [_ledger("map", statistics, _after(target.plan), target.writer) for target in targets]
        # Backwards: what the fold read last is still in the page cache where not all of the inputs fit.
        return _run(plan, plan.tasks[::-1], work, ledgers, watch)


@dataclass(frozen=True, slots=True)
class Job:
    """One block, and the ledgers that lack it."""

    task: Task
    block: Block
    pending: tuple[int, ...]
    nbytes: int
    """Read for it."""


def _after(plan: Plan) -> tuple[Foldable[Any], ...]:
    """What a map answers beside the statistics that it is given."""
    thresholds = dict.fromkeys([*(method.overlap.threshold for method in plan.methods), Rounding().threshold])
    asked = dict.fromkeys([*(question for method in plan.methods for question in method.after()), *plan.further])
    return (Copied(), *(Rounding(threshold) for threshold in thresholds), *asked)


def _ledger(phase: str, asked: Sequence[Any], further: Sequence[Any], writer: Writer | None) -> Ledger:
    """All that is answered is part of the phase: a run that asks more or less than an earlier one begins it anew."""
    questions = [*asked, *further]
    name = ": ".join([phase, ", ".join(question.key for question in questions)])
    if writer is None:
        return Ledger(name, questions)
    return Ledger(name, questions, writer.entries, writer.commit)


def _run(
    plan: Plan,
    tasks: Sequence[Task],
    work: Work,
    ledgers: Sequence[Ledger],
    watch: Watch,
) -> tuple[Survey, ...]:
    """Do every unfinished block of the tasks; the calling thread only collects, commits and reports."""
    jobs = [job for task in tasks for job in _unfinished(plan, task, ledgers)]
    watch.begin(ledgers[0].phase.partition(":")[0], sum(job.nbytes for job in jobs))
    results: SimpleQueue[Result] = SimpleQueue()
    with _Workers(plan, jobs, work, results):
        committed = time.monotonic()
        try:
            for found in _collected(results, len(jobs)):
                if isinstance(found, BaseException):
                    raise found
                job, all_answers = found
                for k, answers in zip(job.pending, all_answers, strict=True):
                    check_block(plan, job.task, answers)
                    ledgers[k].add(job.block, answers)
                watch.advance(job.nbytes)
                if time.monotonic() - committed > COMMIT_SECONDS:
                    _flush(ledgers)
                    committed = time.monotonic()
        finally:
            _flush(ledgers)
    return tuple(ledger.survey for ledger in ledgers)


def _collected(results: SimpleQueue[Result], count: int) -> Iterator[Result]:
    """So many results, each soon after it came."""
    while count:
        found = [results.get()]
        while not results.empty():
            found.append(results.get())
        yield from found
        count -= len(found)
        if count > MANY:
            time.sleep(PAUSE)


def _flush(ledgers: Sequence[Ledger]) -> None:
    for ledger in ledgers:
        ledger.flush()


def _unfinished(plan: Plan, task: Task, ledgers: Sequence[Ledger]) -> Iterator[Job]:
    done = [ledger.done(task.tensor.name) for ledger in ledgers]
    for start, stop, pending in pieces(done, task.tensor.elements):
        for block in plan.blocks(task, start, stop):
            yield Job(task, block, pending, plan.bytes_read(task, block))


class _Workers:
    """Threads that take jobs in order until there are none, or until the with block ends."""

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[Job],
        work: Work,
        results: SimpleQueue[Result],
    ) -> None:
        count = min(plan.workers, len(jobs))
        self._work, self._results = work, results
        self._jobs, self._ahead = iter(jobs), iter(jobs[count:])
        self._lock, self._stopped = threading.Lock(), False
        self._threads = [threading.Thread(target=self._loop, name=f"merge-{i}") for i in range(count)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()

    def _loop(self) -> None:
        buffers = Buffers()
        try:
            while (job := self._next(self._jobs)) is not None:
                later = self._next(self._ahead)
                ahead = (later.task, later.block) if later else None
                self._results.put((job, self._work(job, ahead, buffers)))
        except BaseException as error:
            self._results.put(error)

    def _next(self, jobs: Iterator[Job]) -> Job | None:
        with self._lock:
            return None if self._stopped else next(jobs, None)
