"""Memory that is used again: fresh pages would cost as much as what is read into them."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.files.positional import PAGE, aligned_empty
from agentmerge.tensors import DTYPES, Array, Block

if TYPE_CHECKING:
    from collections.abc import Hashable

BYTES = np.dtype(np.uint8)


class Rooms:
    """Buffers by a key, each as large as was ever asked of it."""

    def __init__(self) -> None:
        self._held: dict[Hashable, Array] = {}

    def take(self, key: Hashable, nbytes: int) -> Array:
        """An uninitialised array, uint8 [nbytes], from a page boundary; what this key was given before is gone."""
        if key not in self._held or self._held[key].size < nbytes:
            self._held.pop(key, None)  # before there is another
            self._held[key] = aligned_empty(nbytes)
        return self._held[key][:nbytes]


class Scratch(local):
    """A buffer per dtype for whichever thread asks."""

    def __init__(self) -> None:
        self._rooms = Rooms()

    def take(self, elements: int, dtype: np.dtype[Any]) -> Array:
        """An uninitialised array [elements]; what this thread took of this dtype before is gone."""
        return self._rooms.take(dtype, elements * dtype.itemsize).view(dtype)

    def for_block(self, block: Block, offset: int = 0) -> Array:
        """The same for the numbers of a block that lie, or will, at an offset of a file.

        The array lies as far behind the start of a page as the file's bytes do, where the size of an element allows it:
        so it may be written past the page cache.
        """
        dtype = DTYPES[block.tensor.dtype]
        nbytes, first = block.elements * dtype.itemsize, offset % PAGE // dtype.itemsize * dtype.itemsize
        return self._rooms.take(BYTES, nbytes + PAGE)[first : first + nbytes].view(dtype)
