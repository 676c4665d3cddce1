"""Threads that share one stream of work and stop together. Knows nothing of the work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


class _Feed(Generic[T]):
    """An iterator that several threads may draw from, and any of them may end."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._lock = Lock()
        self._stopped = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._items)

    def stop(self) -> None:
        self._stopped = True


def run_all(work: Callable[[T], None], items: Iterable[T], workers: int) -> None:
    """Do the work on every item, in `workers` threads, in any order, drawn as threads become free.

    Raises:
        What the work raises; then, and on an interrupt, every thread stops after the item in hand.
    """
    feed = _Feed(items)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(_drain, feed, work) for _ in range(workers)]:
                future.result()
        finally:
            feed.stop()


def _drain(feed: _Feed[T], work: Callable[[T], None]) -> None:
    try:
        for item in feed:
            work(item)
    except BaseException:
        feed.stop()
        raise
