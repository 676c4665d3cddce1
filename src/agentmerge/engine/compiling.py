"""Compile the kernels beside other work, say so where that takes long, and never where a run is refused."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from agentmerge import kernels
from agentmerge.files import reading
from agentmerge.kernels import cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentmerge.methods.base import MergeMethod
    from agentmerge.progress import Watch

PATIENCE = 1.0
"""Seconds of waiting before it is worth a word: loading from the cache takes less, compiling takes more."""


class Compiling:
    """Calls in a thread of their own; their error waits for whoever waits for their end.

    The first call is made at once, the others from `begin` on. The end of the with block stops it between two calls: a
    run that is refused does not wait for a compiler.
    """

    def __init__(self, *calls: Callable[[], object]) -> None:
        self._calls = calls
        self._error: BaseException | None = None
        self._begun, self._stopped = Event(), False
        self._thread = Thread(target=self._run, name="kernels")
        self._thread.start()

    def begin(self) -> None:
        """The run will need all of it."""
        self._begun.set()

    def wait(self, watch: Watch) -> None:
        """Return when the calls have; raise what one of them raised."""
        self.begin()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            watch.begin("compiling the kernels, once on this machine", 0)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self.begin()

    def _run(self) -> None:
        try:
            for i, call in enumerate(self._calls):
                if i:
                    self._begun.wait()
                if self._stopped:
                    return
                call()
        except BaseException as error:
            self._error = error


def kernels_for(methods: Iterable[MergeMethod], *, full: bool, more: Iterable[str] = ()) -> list[Callable[[], object]]:
    """The calls that load the kernels of a run; the first only imports what they are made with.

    Args:
        methods: that merge; none where nothing is merged.
        full: whether the full probe's questions are asked.
        more: loops beside those of the methods.
    """
    if not kernels.compiling():
        return []
    loops = dict.fromkeys(("count", *(loop for method in methods for loop in method.loops), *more))
    names = (*loops, *(("full",) if full else ()))
    first = partial(import_module, "agentmerge.kernels.cpu.loops.count")
    return [first, reading.load, *(partial(cpu.load, name) for name in names)]
