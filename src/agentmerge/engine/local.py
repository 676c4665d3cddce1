"""Run a plan with threads of this process: each reads a block, computes it and writes it. Knows no method."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from agentmerge.engine.blocks import Buffers, expect_stack, fold_block, map_block
from agentmerge.engine.checks import check_block
from agentmerge.engine.ledger import Answers, Ledger
from agentmerge.survey.copied import Copied
from agentmerge.survey.rounding import Rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentmerge.checkpoint.writer import Writer
    from agentmerge.engine.plan import Plan, Task
    from agentmerge.engine.runner import Watch
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Block

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

        def work(task: Task, block: Block, buffers: Buffers) -> Answers:
            return fold_block(plan, task, block, statistics, buffers)

        return _run(plan, plan.merged, work, _ledger(phase, statistics, (), writer), watch)

    def map(
        self, plan: Plan, survey: Survey, statistics: Sequence[Statistic[Any]], writer: Writer, watch: Watch
    ) -> Survey:
        """See Runner.map."""

        def work(task: Task, block: Block, buffers: Buffers) -> Answers:
            stored, answers = map_block(plan, task, block, survey, statistics, buffers)
            for place in task.places:
                writer.write(place, block.start, stored)
            return answers

        thresholds = dict.fromkeys([*(method.overlap.threshold for method in plan.methods), Rounding().threshold])
        after = dict.fromkeys(question for method in plan.methods for question in method.after())
        further = [Copied(), *(Rounding(threshold) for threshold in thresholds), *after]
        # Backwards: what the fold read last is still in the page cache where not all of the inputs fit.
        return _run(plan, plan.tasks[::-1], work, _ledger("map", statistics, further, writer), watch)


def _ledger(phase: str, asked: Sequence[Any], further: Sequence[Any], writer: Writer | None) -> Ledger:
    """What is asked is part of the phase: a run with a saved survey can't go on from one without, nor the reverse."""
    name = ": ".join([phase, ", ".join(statistic.key for statistic in asked)])
    if writer is None:
        return Ledger(name, [*asked, *further])
    return Ledger(name, [*asked, *further], writer.entries, writer.commit)


def _run(
    plan: Plan,
    tasks: Sequence[Task],
    work: Callable[[Task, Block, Buffers], Answers],
    ledger: Ledger,
    watch: Watch,
) -> Survey:
    """Do every unfinished block of the tasks; the calling thread only collects, commits and reports."""
    jobs = [(task, block) for task in tasks for block in _unfinished(plan, task, ledger)]
    watch.begin(ledger.phase.partition(":")[0], sum(plan.bytes_read(task, block) for task, block in jobs))
    results: SimpleQueue[tuple[Task, Block, Answers] | BaseException] = SimpleQueue()
    with _Workers(plan, jobs, work, results):
        committed = time.monotonic()
        try:
            for _ in jobs:
                found = results.get()
                if isinstance(found, BaseException):
                    raise found
                task, block, answers = found
                check_block(plan, task, answers)
                ledger.add(block, answers)
                watch.advance(plan.bytes_read(task, block))
                if time.monotonic() - committed > COMMIT_SECONDS:
                    ledger.flush()
                    committed = time.monotonic()
        finally:
            ledger.flush()
    return ledger.survey


def _unfinished(plan: Plan, task: Task, ledger: Ledger) -> Iterator[Block]:
    for start, stop in ledger.gaps(task.tensor.name, task.tensor.elements):
        yield from plan.blocks(task, start, stop)


class _Workers:
    """Threads that take jobs in order until there are none, or until the with block ends."""

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[tuple[Task, Block]],
        work: Callable[[Task, Block, Buffers], Answers],
        results: SimpleQueue[Any],
    ) -> None:
        count = min(plan.workers, len(jobs))
        self._plan, self._work, self._results = plan, work, results
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
                if (ahead := self._next(self._ahead)) is not None:
                    expect_stack(self._plan, *ahead)
                self._results.put((*job, self._work(*job, buffers)))
        except BaseException as error:
            self._results.put(error)

    def _next(self, jobs: Iterator[tuple[Task, Block]]) -> tuple[Task, Block] | None:
        with self._lock:
            return None if self._stopped else next(jobs, None)
