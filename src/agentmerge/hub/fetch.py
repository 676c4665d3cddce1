"""A model of the hub made to lie here: what is missing of it is fetched into the hub's own cache."""

from __future__ import annotations

import queue
import shutil
import threading
from contextlib import suppress
from functools import partial
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agentmerge.errors import Note, SourceError, Where
from agentmerge.hub.afar import put_headers
from agentmerge.hub.answers import no_bars, reading
from agentmerge.hub.chosen import beside_weights, weights_of
from agentmerge.hub.large import bring
from agentmerge.hub.listing import cache_of, known_commit, listing, snapshot_of
from agentmerge.sources.delta_opening import delta_files
from agentmerge.sources.hub import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.hub.listing import Listing
    from agentmerge.progress import Watch
    from agentmerge.sources.hub import HubId

THREADS = 4
"""Files that are fetched at the same time."""
LOOK = 0.2
"""Seconds between two looks at how far they are."""


def fetched(text: str, watch: Watch, pins: Mapping[str, str]) -> Snapshot | None:
    """What a source is on the hub, with everything here that a merge reads; None where the source is no id.

    What the cache has is not fetched again. Where the hub can't be asked, what the cache has is used, with a warning.

    Args:
        text: what the user wrote.
        watch: is told of the progress.
        pins: commits by such texts, that a killed run began with: they are used wherever a branch is now.

    Raises:
        SourceError: it is not there, not allowed, or can't be fetched.
    """
    return snapshot_of(text, pins, partial(_bring, watch=watch))


def _bring(now: Listing, pin: str, watch: Watch) -> Snapshot:
    if not pin:
        _remember(now)
    fetch(now, beside_weights(now.sizes), watch)
    fetch(now, weights_in(now), watch)
    return Snapshot(now.folder, now.commit, tuple(_moved(now.model, pin)))


def weights_in(now: Listing) -> list[str]:
    """The weight files that are read; what lies beside them must be here."""
    return weights_of(now.sizes, now.folder, lambda names: _deltas(now, names))


def fetch(now: Listing, names: Sequence[str], watch: Watch) -> None:
    """Put files into the cache that are not there; the main thread tells how far that is, and may be interrupted.

    Raises:
        SourceError: one can't be fetched, or the disk has no room for all.
    """
    missing = [name for name in names if not now.here(name)]
    if not missing:
        return
    total = sum(now.sizes[name] for name in missing)
    _check_space(now, total)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in sorted(missing, key=lambda name: -now.sizes[name]):
        jobs.put(name)
    errors: list[tuple[str, Exception]] = []
    threads = [threading.Thread(target=_work, args=(now, jobs, errors), daemon=True) for _ in range(THREADS)]
    watch.begin(f"Fetching {now.model}", total)
    with no_bars():
        _run(threads, cache_of(now.model) / "blobs", total, watch)
    for name, error in errors:
        with reading(now.model, name):
            raise error


def _run(threads: Sequence[threading.Thread], blobs: Path, total: int, watch: Watch) -> None:
    """Let them work, and tell of the bytes that come to a folder meanwhile."""
    before, told = _bytes_in(blobs), 0
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK)
            new = min(max(_bytes_in(blobs) - before - told, 0), total - told)
            told += new
            watch.advance(new)
    watch.advance(total - told)


def _work(now: Listing, jobs: queue.SimpleQueue[str], errors: list[tuple[str, Exception]]) -> None:
    """Fetch file after file until none is left, or one failed anywhere."""
    while not errors:
        try:
            name = jobs.get_nowait()
        except queue.Empty:
            return
        try:
            bring(now, name)
        except Exception as error:  # told by the main thread
            errors.append((name, error))


def _bytes_in(folder: Path) -> int:
    """Of the files of a folder, those that are on their way included."""
    total = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _check_space(now: Listing, needed: int) -> None:
    place = next(folder for folder in chain([now.folder], now.folder.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SourceError(
            f"{now.model}: {needed:,} bytes are to be fetched, {free:,} are free in the hub's cache ({place})",
            todo="Free some space, or name another place with HF_HOME.",
            where=Where(source=str(now.model)),
        )


def _remember(now: Listing) -> None:
    """Let the cache know the commit of a branch or tag, for whoever asks it without a network."""
    revision = now.model.revision or "main"
    if now.commit == revision or known_commit(now.model) == now.commit:
        return
    path = cache_of(now.model) / "refs" / revision
    with reading(now.model):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{threading.get_native_id()}.part")
        part.write_text(now.commit, encoding="utf-8")
        part.replace(path)


def _deltas(now: Listing, names: Sequence[str]) -> list[str]:
    """Those of some files that hold deltas, as their headers on the hub say."""
    with TemporaryDirectory(prefix="agentmerge-") as folder:
        place = put_headers(now, names, folder)
        return delta_files(place, names)


def _moved(model: HubId, pin: str) -> Iterator[Note]:
    """A warning where a branch moved since the run began that goes on now."""
    if not pin:
        return
    try:
        commit = listing(model).commit
    except SourceError:
        return
    if commit != pin:
        found = f"{model}: this merge began with commit {pin} and goes on with it; the hub is at {commit} now."
        yield Note(found, "To merge what is there now, start over with --overwrite.")
