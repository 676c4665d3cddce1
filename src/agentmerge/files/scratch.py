"""Memory of one thread that is used again: fresh pages would cost as much as what is read into them."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np

from agentmerge.files.positional import PAGE
from agentmerge.tensors import DTYPES, Array, Block

BYTES = np.dtype(np.uint8)


class Scratch(local):
    """A buffer per dtype for whichever thread asks."""

    def __init__(self) -> None:
        self._held: dict[np.dtype[Any], Array] = {}

    def take(self, elements: int, dtype: np.dtype[Any]) -> Array:
        """An uninitialised array [elements]; what this thread took of this dtype before is gone."""
        if dtype not in self._held or self._held[dtype].size < elements:
            self._held[dtype] = np.empty(elements, dtype)
        return self._held[dtype][:elements]

    def for_block(self, block: Block, offset: int = 0) -> Array:
        """The same for the numbers of a block that lie, or will, at an offset of a file.

        The array lies as far behind the start of a page as the file's bytes do, where the size of an element allows it:
        so it may be written past the page cache.
        """
        dtype = DTYPES[block.tensor.dtype]
        room = self.take(block.elements * dtype.itemsize + 2 * PAGE, BYTES)
        first = -room.ctypes.data % PAGE + offset % PAGE // dtype.itemsize * dtype.itemsize
        return room[first : first + block.elements * dtype.itemsize].view(dtype)
