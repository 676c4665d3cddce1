"""Bytes go to and come from their offsets, whatever the OS does in between. Knows no safetensors."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.files import positional
from agentmerge.files.positional import ShortRead, read_into, write_from

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["preadv", "pread"])
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pread":
        monkeypatch.delattr(os, "preadv", raising=False)
    elif not hasattr(os, "preadv"):
        pytest.skip("this system has no preadv")
    return request.param


@pytest.mark.parametrize("count", [0, 1, 63, 4097])
def test_what_is_written_at_an_offset_is_read_from_it(fd: int, call: str, count: int) -> None:
    values = np.arange(count, dtype=np.float32).astype(ml_dtypes.bfloat16)
    write_from(fd, values, 10)
    back = np.empty_like(values)
    read_into(fd, back, 10)
    assert back.tobytes() == values.tobytes()


def test_every_kind_of_buffer_will_do(fd: int, call: str) -> None:
    write_from(fd, b"abcdef", 0)
    write_from(fd, memoryview(b"XY"), 2)
    write_from(fd, bytearray(b"Z"), 5)
    into = bytearray(6)
    read_into(fd, into, 0)
    assert into == b"abXYeZ"


def test_a_read_past_the_end_says_how_many_bytes_were_there(fd: int, call: str) -> None:
    write_from(fd, b"12345", 0)
    with pytest.raises(ShortRead, match="3 of 8 bytes") as caught:
        read_into(fd, bytearray(8), 2)
    assert (caught.value.got, caught.value.wanted) == (3, 8)


def test_a_strided_array_is_refused_instead_of_copied(fd: int) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        read_into(fd, np.zeros((4, 4))[:, 1], 0)


def test_reads_and_writes_that_stop_early_are_continued(fd: int, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, view, offset: pwrite(fd, view[:7], offset))
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: pread(fd, min(count, 7), offset))
    if call == "preadv":
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, views, offset: preadv(fd, [views[0][:7]], offset))
    write_from(fd, data, 3)
    back = np.empty_like(data)
    read_into(fd, back, 3)
    assert np.array_equal(back, data)


def test_no_call_moves_more_than_the_os_allows(fd: int, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert positional.MOST_PER_CALL == 2_147_479_552
    monkeypatch.setattr(positional, "MOST_PER_CALL", 64)
    monkeypatch.setattr(positional, "COPIED_PER_CALL", 16)
    sizes = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, offset: sizes.append(len(view)) or pwrite(fd, view, offset))
    write_from(fd, bytes(range(200)), 0)
    into = bytearray(200)
    read_into(fd, into, 0)
    assert into == bytes(range(200))
    assert sizes == [64, 64, 64, 8]


def test_a_full_disk_passes_through_as_the_os_error(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_from(fd, b"x", 0)
    assert caught.value.errno == errno.ENOSPC


def test_a_write_that_never_moves_ends(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="0 of 1 bytes"):
        write_from(fd, b"x", 0)


@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_preallocating_gives_the_size_and_keeps_what_is_there(fd: int, size: int) -> None:
    write_from(fd, b"keep", 0)
    positional.preallocate(fd, size)
    assert os.fstat(fd).st_size == size
    into = bytearray(min(size, 4))
    read_into(fd, into, 0)
    assert into == b"keep"[:size]


@pytest.mark.parametrize("problem", [errno.EINVAL, errno.EOPNOTSUPP, None])
def test_preallocating_works_where_it_is_not_supported(
    fd: int, problem: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(problem, "not here")

    if problem is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    positional.preallocate(fd, 1234)
    assert os.fstat(fd).st_size == 1234


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EFBIG])
def test_preallocating_more_than_fits_is_an_error(fd: int, problem: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError(problem, "too much")

    monkeypatch.setattr(os, "posix_fallocate", refused, raising=False)
    with pytest.raises(OSError, match="too much"):
        positional.preallocate(fd, 1234)


@pytest.mark.parametrize("there", [True, False])
def test_advice_and_sync_change_no_bytes(fd: int, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
        monkeypatch.delattr(os, "fdatasync", raising=False)
    write_from(fd, b"data", 0)
    positional.advise_sequential(fd)
    positional.sync_data(fd)
    positional.sync_folder(tmp_path)
    positional.advise_soon(fd, 0, 4)
    into = bytearray(4)
    read_into(fd, into, 0)
    assert into == b"data"


def test_on_macos_sync_reaches_the_drive(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(positional.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(positional.fcntl, "fcntl", lambda fd, what: asked.append(what))
    positional.sync_data(fd)
    assert asked == [51]


def test_only_one_opening_holds_the_lock(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert positional.lock_exclusive(first)
    assert not positional.lock_exclusive(second)
    os.close(first)
    assert positional.lock_exclusive(second)
    os.close(second)


@settings(deadline=None)  # a disk may be slow
@given(st.integers(0, 20_000))
def test_aligned_buffers_start_at_a_page(nbytes: int) -> None:
    buffer = positional.aligned_empty(nbytes)
    assert (buffer.nbytes, buffer.dtype) == (nbytes, np.dtype(np.uint8))
    assert buffer.ctypes.data % 4096 == 0 or nbytes == 0


def test_a_buffer_that_is_too_large_is_a_lack_of_memory_and_no_fault_of_a_file() -> None:
    with pytest.raises(MemoryError, match="4,611,686,018,427,387,904 bytes"):
        positional.aligned_empty(1 << 62)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what memory is held")
def test_the_memory_of_a_buffer_that_goes_is_the_systems_again() -> None:
    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    size, before = 1 << 24, held()
    for _ in range(2):  # an allocator keeps the second one's, having learned from the first
        buffer = positional.aligned_empty(size)
        buffer[:] = 1
        assert held() > before + size // 2
        del buffer
        assert held() < before + size // 2


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        positional.open_to_read(path)


def test_an_array_written_past_the_cache_lands_where_an_ordinary_write_would_put_it(tmp_path):
    path = tmp_path / "file"
    for offset in (0, 64, 4096, 5000):
        for size in (0, 1, 4095, 4096, 12_345):
            path.write_bytes(bytes(40_000))
            direct = positional.open_direct(path)
            if direct is None:
                pytest.skip("this file system writes through its page cache only")
            cached = os.open(path, os.O_RDWR)
            room = positional.aligned_empty(size + 2 * positional.PAGE)
            for phase in (offset % positional.PAGE, (offset + 512) % positional.PAGE):
                buffer = room[phase : phase + size]
                buffer[:] = np.arange(size) % 251
                positional.write_past_cache(cached, direct, buffer, offset)
                assert path.read_bytes()[offset : offset + size] == buffer.tobytes()
            os.close(cached)
            os.close(direct)


def test_a_folder_or_a_missing_file_can_not_be_opened_past_the_cache(tmp_path):
    assert positional.open_direct(tmp_path / "none") is None
    assert positional.open_direct(tmp_path) is None
