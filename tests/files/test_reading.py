"""One compiled call reads several pieces of open files, as far as it can."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.files import reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.skipif(not reading.supported(), reason="this system lacks pread or posix_fadvise")
DATA = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(DATA.tobytes())
    opened = os.open(tmp_path / "file", os.O_RDONLY)
    yield opened
    os.close(opened)


def test_every_piece_goes_to_its_array(fd: int) -> None:
    ends = [(0, 10), (9_000, 10_000), (17, 4_113), (5, 5)]
    arrays = [np.zeros(stop - start, np.uint8) for start, stop in ends]
    pieces = [(fd, start, stop - start) for start, stop in ends]
    assert reading.read(pieces, arrays, ahead=[(fd, 0, 10_000)]) == 4
    for (start, stop), array in zip(ends, arrays, strict=True):
        assert np.array_equal(array, DATA[start:stop])


def test_it_tells_how_far_it_came(fd: int) -> None:
    arrays = [np.zeros(8, np.uint8) for _ in range(3)]
    assert reading.read([(fd, 0, 8), (fd, 9_996, 8), (fd, 0, 8)], arrays) == 1
    assert np.array_equal(arrays[0], DATA[:8])
    assert np.array_equal(arrays[1][:4], DATA[-4:])
    assert not arrays[2].any()


def test_a_closed_file_gives_nothing(fd: int) -> None:
    copy = os.dup(fd)
    os.close(copy)
    assert reading.read([(copy, 0, 8)], [np.zeros(8, np.uint8)]) == 0


@pytest.mark.parametrize(
    "array", [np.zeros(7, np.uint8), np.zeros(16, np.uint8)[::2], np.frombuffer(bytes(8), np.uint8)], ids=str
)
def test_memory_that_does_not_fit_is_refused(fd: int, array: Array) -> None:
    with pytest.raises(ValueError, match="expected 8 bytes, contiguous and writable"):
        reading.read([(fd, 0, 8)], [array])
    with pytest.raises(ValueError, match="zip"):
        reading.read([(fd, 0, 8)], [])


def test_nothing_to_read_is_read(fd: int) -> None:
    assert reading.read([], []) == 0
    assert reading.read([], [], ahead=[(fd, 0, 100)]) == 0
