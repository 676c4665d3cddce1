"""Results that are dear to compute and needed in a later pass, kept in a file beside the output while it grows.

A draft is float32 and carries a checksum: one that is torn, damaged or not there is none, and is computed again. So it
needs no journal, and no bytes of the output depend on it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.files.positional import (
    PAGE,
    ShortRead,
    aligned_empty,
    flat_bytes,
    preallocate,
    read_into,
    write_from,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from agentmerge.tensors import Array

DRAFTS = ".drafts"
"""The file's name in the staging folder."""
_SEED = 0x64726166
"""What a checksum starts from, so that no bytes that were never written have theirs."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for the draft of one tensor."""

    elements: int
    matrices: int
    """Each may be drafted by itself."""

    @property
    def nbytes(self) -> int:
        """The numbers and a checksum of each matrix, in whole pages."""
        used = 4 * self.elements + 8 * self.matrices
        return used + -used % PAGE


class Drafts:
    """A file with a slot for each name."""

    def __init__(self, path: Path, slots: Mapping[str, Slot]) -> None:
        """Open the file, or make it, and take its disk space.

        Args:
            path: of the file.
            slots: by name, in an order that is the same when the work goes on.

        Raises:
            OSError: it can't be made, or there is no space for it.
        """
        self._slots, self._offsets, end = dict(slots), {}, 0
        for name, slot in slots.items():
            self._offsets[name], end = end, end + slot.nbytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            preallocate(self._file, end)
        except BaseException:
            self.close()
            raise

    def keep(self, name: str, start: int, values: Array) -> None:
        """Keep float32 elements [start, start + values.size) of a name, whole matrices; without a slot nothing is kept.

        Raises:
            OSError: the disk refuses.
        """
        if name in self._slots:
            write_from(self._file, values, self._offsets[name] + 4 * start)
            write_from(self._file, np.array([_checksum(name, start, values)], np.uint64), self._stamp(name, start))

    def take(self, name: str, start: int, elements: int) -> Array | None:
        """What was kept, float32 [elements]; None where that is not whole."""
        if name not in self._slots:
            return None
        values, stamp = aligned_empty(4 * elements).view(np.float32), np.empty(1, np.uint64)
        try:
            read_into(self._file, values, self._offsets[name] + 4 * start)
            read_into(self._file, stamp, self._stamp(name, start))
        except (OSError, ShortRead):
            return None
        return values if int(stamp[0]) == _checksum(name, start, values) else None

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stamp(self, name: str, start: int) -> int:
        """Where the checksum of what begins at this element lies."""
        slot = self._slots[name]
        matrix = start * slot.matrices // max(slot.elements, 1)
        return self._offsets[name] + 4 * slot.elements + 8 * matrix


def _checksum(name: str, start: int, values: Array) -> int:
    """Over whose they are, the bytes, and how many: what an earlier run kept here for another name is none of ours."""
    return values.size << 32 | zlib.crc32(flat_bytes(values), zlib.crc32(f"{name}\0{start}".encode(), _SEED))
