"""Files are opened when they are used, and a process never has many open at once."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.files import open_files as module
from agentmerge.files import positional, reading
from agentmerge.files.open_files import OpenFiles
from agentmerge.files.reading import Extent

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def open_files(folder: Path, most: int) -> OpenFiles:
    for name in "abc":
        (folder / name).write_text(name)
    return OpenFiles(lambda name: positional.open_to_read(folder / name), most)


def test_open_files_are_few_and_reused(tmp_path: Path) -> None:
    files = open_files(tmp_path, 2)
    seen = {}
    for name in "abac":
        with files.borrow(name) as fd:
            assert seen.setdefault(name, fd) == fd
            assert os.pread(fd, 1, 0) == name.encode()
    assert is_open(seen["a"])
    with files.borrow("a") as fd:
        assert fd == seen["a"]
    files.close()
    assert not is_open(seen["a"])
    with pytest.raises(ValueError, match=r"read after close"), files.borrow("a"):
        pass


def test_a_file_in_use_stays_open_until_its_reader_is_done(tmp_path: Path) -> None:
    files = open_files(tmp_path, 1)
    with files.borrow("a") as first:
        for name in "bc":
            with files.borrow(name):
                pass
        files.close()
        assert os.pread(first, 1, 0) == b"a"
    assert not is_open(first)


def test_the_files_of_many_sources_are_closed_before_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = module._all.open
    monkeypatch.setattr(module, "descriptors", lambda: 2 * (before + 4))
    many = [open_files(tmp_path, 2) for _ in range(10)]
    seen = []
    for files in many:
        for name in "ab":
            with files.borrow(name) as fd:
                assert os.pread(fd, 1, 0) == name.encode()
                seen.append(module._all.open - before)
    assert max(seen) == 4
    for files in many:
        files.close()
    assert module._all.open == before


def test_a_block_of_more_files_than_may_be_open_is_read_in_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, threads = module._all.open, 3
    monkeypatch.setattr(module, "descriptors", lambda: 2 * (before + 8))
    many = [open_files(tmp_path, 2) for _ in range(60)]
    extents = [[Extent(_Named(files, name), 0, 1)] for files in many for name in "abc"]
    wrong, seen = [], []

    def work() -> None:
        arrays = [np.zeros(1, np.uint8) for _ in extents]
        if reading.fill(arrays, extents, [part for parts in extents for part in parts]) != len(arrays):
            wrong.append("short")
        seen.append(module._all.open - before)
        wrong.extend(str(i) for i, array in enumerate(arrays) if array.tobytes() != b"abc"[i % 3 : i % 3 + 1])

    most = _watched(monkeypatch, before)
    with ExitStack() as stack:
        for files in many:
            stack.callback(files.close)
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
    assert wrong == []
    assert most[0] <= 8 + threads
    assert module._all.open == before


def _watched(monkeypatch: pytest.MonkeyPatch, before: int) -> list[int]:
    """The most files that are open at any time from now on."""
    most, used = [0], module._All.used

    def watched(self: object, *args: object) -> None:
        used(self, *args)  # type: ignore[arg-type]
        most[0] = max(most[0], module._all.open - before)

    monkeypatch.setattr(module._All, "used", watched)
    return most


class _Named:
    """One file of some."""

    def __init__(self, files: OpenFiles, name: str) -> None:
        self._files, self._name = files, name

    def borrow(self) -> AbstractContextManager[int]:
        return self._files.borrow(self._name)


def test_many_threads_always_read_the_file_that_they_asked_for(tmp_path: Path) -> None:
    files = open_files(tmp_path, 1)
    wrong = []

    def work(names: str) -> None:
        for name in names * 200:
            with files.borrow(name) as fd:
                if os.pread(fd, 1, 0) != name.encode():
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(names,)) for names in ("abc", "cab", "bca", "acb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files.close()
    assert wrong == []
