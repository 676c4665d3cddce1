"""One compiled call fills arrays from ranges of files, as far as it can."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.files import reading
from agentmerge.files.reading import Extent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.skipif(not reading.supported(), reason="this system lacks pread or posix_fadvise")
DATA = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)


class Lent:
    """A file that is open anyway."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lent = 0

    @contextmanager
    def borrow(self) -> Iterator[int]:
        self.lent += 1
        try:
            yield self.fd
        finally:
            self.lent -= 1


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Lent]:
    (tmp_path / "file").write_bytes(DATA.tobytes())
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield Lent(fd)
    os.close(fd)


def test_every_extent_goes_to_its_array(file: Lent) -> None:
    ends = [(0, 10), (9_000, 10_000), (17, 4_113), (5, 5)]
    arrays = [np.zeros(stop - start, np.uint8) for start, stop in ends]
    extents = [[Extent(file, start, stop - start)] for start, stop in ends]
    assert reading.fill(arrays, extents, ahead=[Extent(file, 0, 10_000)]) == 4
    for (start, stop), array in zip(ends, arrays, strict=True):
        assert np.array_equal(array, DATA[start:stop])
    assert file.lent == 0


def test_the_extents_of_an_array_fill_it_one_after_another(file: Lent) -> None:
    array, other = np.zeros(9, np.uint8), np.zeros(2, np.uint8)
    parts = [Extent(file, 7, 4), Extent(file, 0, 0), Extent(file, 100, 5)]
    assert reading.fill([array, other], [parts, [Extent(file, 0, 2)]]) == 2
    assert np.array_equal(array, np.concatenate([DATA[7:11], DATA[100:105]]))
    assert np.array_equal(other, DATA[:2])


def test_it_tells_how_far_it_came(file: Lent) -> None:
    arrays = [np.zeros(8, np.uint8) for _ in range(3)]
    assert reading.fill(arrays, [[Extent(file, at, 8)] for at in (0, 9_996, 0)]) == 1
    assert np.array_equal(arrays[0], DATA[:8])
    assert np.array_equal(arrays[1][:4], DATA[-4:])
    assert not arrays[2].any()


def test_an_array_whose_last_extent_fails_is_not_filled(file: Lent) -> None:
    arrays = [np.zeros(8, np.uint8) for _ in range(2)]
    parts = [Extent(file, 0, 4), Extent(file, 9_998, 4)]
    assert reading.fill(arrays, [[Extent(file, 0, 8)], parts]) == 1


def test_a_closed_file_gives_nothing(file: Lent) -> None:
    copy = os.dup(file.fd)
    os.close(copy)
    assert reading.fill([np.zeros(8, np.uint8)], [[Extent(Lent(copy), 0, 8)]]) == 0


@pytest.mark.parametrize(
    "array", [np.zeros(7, np.uint8), np.zeros(16, np.uint8)[::2], np.frombuffer(bytes(8), np.uint8)], ids=str
)
def test_memory_that_does_not_fit_is_refused(file: Lent, array: Array) -> None:
    with pytest.raises(ValueError, match="expected 8 bytes, contiguous and writable"):
        reading.fill([array], [[Extent(file, 0, 8)]])
    with pytest.raises(ValueError, match="zip"):
        reading.fill([], [[Extent(file, 0, 8)]])
    assert file.lent == 0


def test_nothing_to_read_is_read(file: Lent) -> None:
    assert reading.fill([], []) == 0
    assert reading.fill([], [], ahead=[Extent(file, 0, 100)]) == 0
    assert reading.fill([np.zeros(0, np.uint8)], [[]]) == 1
