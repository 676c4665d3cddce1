"""Compile the kernels while the sources are opened, and say so where that takes long."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

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
    """A call in a thread of its own, from now on; its error waits for whoever waits for its end."""

    def __init__(self, load: Callable[[], None]) -> None:
        self._load = load
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="kernels")
        self._thread.start()

    def wait(self, watch: Watch) -> None:
        """Return when the call has; raise what it raised."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            watch.begin("compiling the kernels, once on this machine", 0)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._load()
        except BaseException as error:
            self._error = error


def kernels_for(methods: Iterable[MergeMethod], *, full: bool) -> Callable[[], None]:
    """What loads the kernels of a run.

    Args:
        methods: that merge; none where nothing is merged.
        full: whether the full probe's questions are asked.
    """
    loops = dict.fromkeys(loop for method in methods for loop in method.loops)

    def load() -> None:
        if kernels.compiling():
            reading.load()
            cpu.load("count", *loops, *(("full",) if full else ()))

    return load
