"""Read ranges of files in one compiled call: threads meet at the interpreter's lock once per block.

A failing disk and a file that ends too early are no errors here: whoever calls reads again, by the slow way, what was
not filled.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agentmerge.files.open_files import crowded
from agentmerge.kernels import compiling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from agentmerge.tensors import Array


class File(Protocol):
    """A file that is open while somebody uses it."""

    def borrow(self) -> AbstractContextManager[int]:
        """Its descriptor, for as long as the `with` lasts."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive bytes of one file."""

    file: File
    offset: int
    """Bytes from the file's start."""
    nbytes: int


def supported() -> bool:
    """Whether numba compiles here, and this system has the calls that the compiled code makes."""
    return compiling() and hasattr(os, "pread") and hasattr(os, "posix_fadvise") and sys.maxsize > 2**32


def fill(arrays: Sequence[Array], extents: Sequence[Sequence[Extent]], ahead: Iterable[Extent] = ()) -> int:
    """Fill every array with its extents, one after another, and let the OS fetch what will be read next.

    Args:
        arrays: contiguous and writable.
        extents: of each array, together as many bytes as it has.
        ahead: what will be read soon.

    Returns:
        How many of the arrays, from the first on, were filled. It takes several calls where the process may not open
        all of the files at once.

    Raises:
        ValueError: an array does not fit its extents.
    """
    done = 0
    with ExitStack() as held:
        call = _Call(held)
        for array, parts in zip(arrays, extents, strict=True):  # compiled code writes to bare addresses
            if call.rows and crowded():
                filled = call.read()
                done += filled
                if filled < len(call.ends):
                    return done
                call = call.anew()
            call.add(array, parts)
        return done + call.read(ahead)


def load() -> None:
    """Compile it, or load it from numba's cache, where this system has what it needs."""
    if supported():
        from agentmerge.files import pread

        pread.read.load()


class _Call:
    """The rows of one compiled call, and every file of it, borrowed once."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self._open: dict[int, int] = {}
        self.rows: list[tuple[int, int, int]] = []
        """Descriptor, offset, bytes."""
        self.ends: list[int] = []
        """Rows up to and with those of each array."""
        self._addresses: list[int] = []

    def add(self, array: Array, parts: Sequence[Extent]) -> None:
        """Read these into an array."""
        address = _address(array, sum(part.nbytes for part in parts))
        for part in parts:
            self.rows.append(self._row(part))
            self._addresses.append(address)
            address += part.nbytes
        self.ends.append(len(self.rows))

    def read(self, ahead: Iterable[Extent] = ()) -> int:
        """How many of the arrays, from the first on, were filled; what comes later is fetched where there is room."""
        later = [self._row(part) for part in takewhile(lambda _: not crowded(), ahead)]
        if not self.rows and not later:
            return len(self.ends)
        from agentmerge.files import pread

        done = int(pread.read(_table(self.rows), np.array(self._addresses, np.int64), _table(later)))
        return sum(end <= done for end in self.ends)

    def anew(self) -> _Call:
        """Another call, once the files of this one are given back."""
        self._held.close()
        return _Call(self._held)

    def _row(self, part: Extent) -> tuple[int, int, int]:
        """As the compiled code takes it."""
        key = id(part.file)
        if key not in self._open:
            self._open[key] = self._held.enter_context(part.file.borrow())
        return self._open[key], part.offset, part.nbytes


def _address(array: Array, nbytes: int) -> int:
    if array.nbytes != nbytes or not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"found {array.dtype} {array.shape}, expected {nbytes} bytes, contiguous and writable")
    return int(array.ctypes.data)


def _table(rows: Sequence[tuple[int, int, int]]) -> Array:
    return np.array(rows, np.int64).reshape(len(rows), 3)
