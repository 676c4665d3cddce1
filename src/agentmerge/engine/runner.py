"""What every runner does with a pass: the blocks that are left, one block's work, and what became of all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from agentmerge.engine.blocks import copied, merged, read_rows, stacked
from agentmerge.engine.estimate import block_size, blocks
from agentmerge.engine.ledger import Ledger, gaps
from agentmerge.engine.nonfinite import put_back, set_apart, spoilt, without, zeroed
from agentmerge.engine.passes import OF_BYTES
from agentmerge.engine.verdicts import check_block
from agentmerge.errors import MergeError
from agentmerge.survey.observe import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agentmerge.engine.blocks import Buffers
    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.passes import Pass
    from agentmerge.engine.plan import Job, Plan
    from agentmerge.progress import Watch
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Block

COMMIT_SECONDS = 2.0
"""How much finished work a kill may cost at most; each commit waits for the disk."""


class Runner(Protocol):
    """Does the work of a pass; the bytes and the answers do not depend on which runner did it."""

    def run(self, plan: Plan, pass_: Pass, survey: Survey, watch: Watch) -> tuple[Survey, ...]:
        """Read every stack of the pass once; answer, merge and write what it asks for.

        Args:
            plan: the sources.
            pass_: what is asked, and where results go.
            survey: the answers that the methods asked for before.
            watch: is told of the progress.

        Returns:
            Per output the answers about inputs and results; of a pass without outputs, one survey.

        Raises:
            MergeError: what the data shows to be wrong; what was finished before stays with the keepers.
        """


@dataclass(frozen=True, slots=True)
class Unit:
    """One block of a job, and the keepers that lack it."""

    job: Job
    block: Block
    lacking: tuple[int, ...]
    share: float
    """What it takes of the machine: units that take some are in work as long as that is 1 in all."""
    flop: float = 0.0
    """Of what it computes at length; 0 where reading takes longer."""

    @property
    def matrices(self) -> int:
        """That are computed at length."""
        return self.block.elements // prod(self.block.tensor.shape[-2:]) if self.flop else 0

    @property
    def nbytes(self) -> int:
        """Read for it."""
        return self.job.bytes_read(self.block.elements)


class Progress:
    """What a pass has finished, by keeper: the work that is left, and the place where results are collected."""

    def __init__(self, plan: Plan, pass_: Pass, watch: Watch) -> None:
        """Find out what earlier runs finished, and tell the watch what is left."""
        self._plan, self._pass, self._watch = plan, pass_, watch
        self._ledgers = [
            Ledger(_phase(pass_, asked), asked, keeper.entries if keeper else (), keeper.commit if keeper else None)
            for keeper, asked in zip(pass_.keepers, pass_.questions(), strict=True)
        ]
        size = block_size(plan)
        self.units = [unit for job in pass_.jobs for unit in self._left(job, size)]
        self._committed = time.monotonic()
        matrices, flop = (sum(getattr(unit, name) for unit in self.units) for name in ("matrices", "flop"))
        watch.begin(pass_.name, sum(unit.nbytes for unit in self.units), matrices=matrices, flop=flop)

    def _left(self, job: Job, size: int) -> Iterator[Unit]:
        done = [ledger.done(job.name) for ledger in self._ledgers]
        share, flop = self._pass.share(job), self._pass.flop(job) / max(job.tensor.elements, 1)
        for start, stop, lacking in gaps(done, job.tensor.elements):
            for block in blocks(job, size, start, stop, self._pass.step(job)):
                yield Unit(job, block, lacking, share, flop * block.elements)

    def collect(
        self, finished: Iterable[tuple[Unit, list[Answers] | BaseException]], stop: Callable[[], None] | None = None
    ) -> tuple[Survey, ...]:
        """Judge, keep and report every result as it comes; commit now and then, and at the end whatever happens.

        Args:
            finished: units with their answers, or with what went wrong, in any order.
            stop: called at the first problem: begin no further unit, and end `finished` when those that were begun
                have come. Of their problems the one that is read first is raised, whichever thread was faster. None
                raises the first to come.

        Raises:
            MergeError: a block shows numbers that can't be merged or stored.
        """
        problems: list[tuple[int, BaseException]] = []
        try:
            for unit, result in finished:
                problem = self._keep(unit, result)
                if problem is not None and stop is None:
                    raise problem
                if problem is not None and stop is not None:
                    problems.append((self.units.index(unit), problem))
                    stop()
                if time.monotonic() - self._committed > COMMIT_SECONDS:
                    self._commit()
        finally:
            self._commit()
        if problems:
            raise min(problems, key=itemgetter(0))[1]
        return tuple(ledger.survey for ledger in self._ledgers)

    def _keep(self, unit: Unit, result: list[Answers] | BaseException) -> BaseException | None:
        """Judge one result; what is wrong with it."""
        if isinstance(result, BaseException):
            return result
        try:
            for k, found in zip(unit.lacking, result, strict=True):
                check_block(self._plan, unit.job, found)
                self._ledgers[k].add(unit.job.name, unit.block, found)
        except MergeError as error:
            return error
        self._watch.advance(unit.nbytes, matrices=unit.matrices, flop=unit.flop)
        return None

    def _commit(self) -> None:
        for ledger in self._ledgers:
            ledger.flush()
        self._committed = time.monotonic()


def do_unit(
    plan: Plan, pass_: Pass, survey: Survey, unit: Unit, buffers: Buffers, ahead: Unit | None = None
) -> list[Answers]:
    """Read one block, answer, and in each output that lacks it merge or copy and write: the work of a worker.

    Args:
        plan: the sources.
        pass_: what to do.
        survey: the answers that the methods asked for before.
        unit: the block.
        buffers: of this worker.
        ahead: what this worker reads next, for the OS to fetch meanwhile.

    Returns:
        The answers for each keeper that lacks the block.
    """
    job, block = unit.job, unit.block
    later = None if ahead is None else (ahead.job, ahead.block)
    rows = read_rows(plan, job, block, buffers, later, writing=bool(pass_.outputs))
    onto = rows[len(job.rows)] if len(rows) > len(job.rows) else None
    stack = stacked(plan, job, block, rows, buffers)
    asked = pass_.asked_of(job)
    seen: Answers = observe(asked, stack)
    read, apart = stack, set_apart(job, stack, seen, survey)
    if apart is not None:
        stack = without(read, apart)
        seen = {**observe([question for question in asked if question not in OF_BYTES], stack), **_of_bytes(seen)}
    if not job.places or not pass_.outputs:
        return [seen for _ in unit.lacking]
    answers = []
    for k in unit.lacking:
        output = pass_.outputs[k]
        mine = output.plan.job(job.name)
        if mine.method is None:
            stored, found = copied(mine, stack, lambda values: spoilt(plan, job, block, values), onto)
        else:
            ground = onto if onto is None or apart is None else zeroed(onto, apart)
            stored, found = merged(mine, stack, survey, buffers, output.after[mine.method], ground)
            if apart is not None:
                put_back(stored, read.base if onto is None else onto, apart, mine.cast, job.name)
        for place in mine.places:
            output.sink.write(place, block.start, stored)
        answers.append({**seen, **found})
    return answers


def _of_bytes(seen: Answers) -> Answers:
    return {question: answer for question, answer in seen.items() if question in OF_BYTES}


def _phase(pass_: Pass, asked: Iterable[Any]) -> str:
    """All that is answered is part of the phase: a run that asks more or less than an earlier one begins it anew."""
    return f"{pass_.name}: {', '.join(question.key for question in asked)}"
