"""Read ranges of files in one compiled call: threads meet at the interpreter's lock once per block.

A failing disk and a file that ends too early are no errors here: whoever calls reads again, by the slow way, what was
not filled.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

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
        How many of the arrays, from the first on, were filled.

    Raises:
        ValueError: an array does not fit its extents.
    """
    rows: list[tuple[int, int, int]] = []  # descriptor, offset, bytes
    addresses: list[int] = []
    ends: list[int] = []  # rows up to and with those of each array
    with ExitStack() as held:
        descriptors = _Descriptors(held)
        for array, parts in zip(arrays, extents, strict=True):  # compiled code writes to bare addresses
            address = _address(array, sum(part.nbytes for part in parts))
            for part in parts:
                rows.append(descriptors.row(part))
                addresses.append(address)
                address += part.nbytes
            ends.append(len(rows))
        later = [descriptors.row(part) for part in ahead]
        if not rows and not later:
            return len(arrays)
        from agentmerge.files import pread

        done = int(pread.read(_table(rows), np.array(addresses, np.int64), _table(later)))
    return sum(end <= done for end in ends)


def load() -> None:
    """Compile it, or load it from numba's cache, where this system has what it needs."""
    if supported():
        from agentmerge.files import pread

        pread.read.load()


class _Descriptors:
    """Every file of a call, borrowed once."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self._open: dict[int, int] = {}

    def row(self, part: Extent) -> tuple[int, int, int]:
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
