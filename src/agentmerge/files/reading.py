"""Read several pieces of open files in one compiled call: threads meet at the interpreter's lock once per block.

Knows no file formats and no errors: whoever calls reads again, by the slow way, what was not read here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels import compiling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Array

Piece = tuple[int, int, int]
"""Descriptor, offset in bytes, bytes."""


def supported() -> bool:
    """Whether numba compiles here, and this system has the calls that the compiled code makes."""
    return compiling() and hasattr(os, "pread") and hasattr(os, "posix_fadvise") and sys.maxsize > 2**32


def read(pieces: Sequence[Piece], into: Sequence[Array], ahead: Sequence[Piece] = ()) -> int:
    """Fill the arrays, and let the OS fetch what will be read next.

    Args:
        pieces: what to read.
        into: an array for each piece, contiguous, of as many bytes.
        ahead: what will be read soon.

    Returns:
        How many of the pieces, from the first on, were read to their end.

    Raises:
        ValueError: an array does not fit its piece.
    """
    for array, (_, _, nbytes) in zip(into, pieces, strict=True):  # compiled code writes to bare addresses
        if array.nbytes != nbytes or not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(f"found {array.dtype} {array.shape}, expected {nbytes} bytes, contiguous and writable")
    if not pieces and not ahead:
        return 0
    from agentmerge.files import pread

    addresses = np.array([array.ctypes.data for array in into], np.int64)
    return int(pread.read(_table(pieces), addresses, _table(ahead)))


def load() -> None:
    """Compile it, or load it from numba's cache, where this system has what it needs."""
    if supported():
        from agentmerge.files import pread

        pread.read.load()


def _table(pieces: Sequence[Piece]) -> Array:
    return np.array(pieces, np.int64).reshape(len(pieces), 3)
