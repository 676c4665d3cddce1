"""Run a pass with threads of this process: each reads a block, computes it and writes it."""

from __future__ import annotations

import threading
import time
from collections import deque
from fractions import Fraction
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

from agentmerge.engine.blocks import Buffers
from agentmerge.engine.estimate import workers
from agentmerge.engine.runner import Progress, do_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentmerge.engine.ledger import Answers
    from agentmerge.engine.passes import Pass
    from agentmerge.engine.plan import Plan
    from agentmerge.engine.runner import Unit
    from agentmerge.progress import Watch
    from agentmerge.survey.statistic import Survey

    Result = tuple[Unit, list[Answers] | BaseException]
    Work = Callable[[Unit, Buffers, Unit | None], list[Answers]]

MANY, PAUSE = 64, 0.002
"""While so many results are missing, so many seconds pass between two looks: a thread that woke for each of them would
take the interpreter's lock from the workers all the time."""


TINY = Fraction(1, 1 << 40)
"""By how much n shares of 1 / n may come to more than 1 in binary numbers."""


class LocalRunner:
    """Threads: reading, compiled kernels and writing all leave the interpreter's lock."""

    def run(self, plan: Plan, pass_: Pass, survey: Survey, watch: Watch) -> tuple[Survey, ...]:
        """See Runner.run; the calling thread only collects, commits and reports."""

        def work(unit: Unit, buffers: Buffers, ahead: Unit | None) -> list[Answers]:
            return do_unit(plan, pass_, survey, unit, buffers, ahead)

        progress = Progress(plan, pass_, watch)
        with _Workers(progress.units, workers(plan), work) as threads:
            return progress.collect(threads.results(), threads.stop)


class _Schedule:
    """Units in their order, for several threads; of those that take a share of the machine, what it has room for.

    The dearest of these come first, so that no thread begins one when the others have nothing left to do.
    """

    def __init__(self, units: Sequence[Unit], ahead: int) -> None:
        self._shared = deque(unit for unit in units if not unit.share)
        self._alone = deque(sorted((unit for unit in units if unit.share), key=lambda unit: -unit.flop))
        self._ahead = ahead
        self._changed = threading.Condition()
        self._taken = Fraction(0)
        self._stopped = False

    def next(self) -> tuple[Unit, Unit | None] | None:
        """A unit and the one that this thread is likely to get next; None when nothing is left. It may wait."""
        with self._changed:
            while self._alone and not self._fits() and not self._shared and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            if self._alone and self._fits():
                self._taken += Fraction(self._alone[0].share)
                return self._alone.popleft(), (self._alone[0] if self._alone else None)
            if not self._shared:
                return None
            unit, later = self._shared.popleft(), self._ahead - 1
            return unit, (self._shared[later] if later < len(self._shared) else None)

    def _fits(self) -> bool:
        return self._taken + Fraction(self._alone[0].share) <= 1 + TINY

    def finished(self, unit: Unit) -> None:
        """A unit is done: the next that needs all processors may begin."""
        if unit.share:
            with self._changed:
                self._taken -= Fraction(unit.share)
                self._changed.notify_all()

    def stop(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Workers:
    """Threads that take units until there are none, or until the with block ends."""

    def __init__(self, units: Sequence[Unit], most: int, work: Work) -> None:
        count = min(most, len(units))
        self._work, self._schedule, self._left = work, _Schedule(units, count), len(units)
        self._results: SimpleQueue[Result | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._loop, name=f"merge-{i}") for i in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Begin no further unit."""
        self._schedule.stop()

    def results(self) -> Iterator[Result]:
        """Every unit that is begun, soon after it is done, until all threads have ended."""
        working = len(self._threads)
        while working:
            found = [self._results.get()]
            while not self._results.empty():
                found.append(self._results.get())
            for result in found:
                if result is None:
                    working -= 1
                else:
                    yield result
            self._left -= len(found)
            if self._left > MANY:
                time.sleep(PAUSE)

    def _loop(self) -> None:
        buffers = Buffers()
        while (found := self._schedule.next()) is not None:
            unit, later = found
            try:
                self._results.put((unit, self._work(unit, buffers, later)))
            except BaseException as error:
                self._results.put((unit, error))
            self._schedule.finished(unit)
        self._results.put(None)
