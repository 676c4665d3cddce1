"""The file of a packed delta while it is written: where each entry lies, and what stands behind the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.deltas.header import header_room, metadata_of
from agentmerge.files.header import encode_header
from agentmerge.sources import bits
from agentmerge.sources.packed_format import FILES, MANIFEST, RANKS
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.deltas.file import NewFile
    from agentmerge.sources.packed_format import Manifest
    from agentmerge.tensors import Array, Block


class Growing:
    """Entries one after another, behind room for the longest header that they may need."""

    def __init__(self, file: NewFile, tensors: Sequence[TensorSpec]) -> None:
        """See the class.

        Args:
            file: where it is written.
            tensors: that it will hold, in whatever form.
        """
        self.file = file
        self._entries: list[TensorSpec] = []
        self._ranks: list[Array] = []
        self._header = header_room(tensors)
        self._end = self._header

    def place(self, entries: Sequence[TensorSpec]) -> tuple[int, ...]:
        """Room for some entries: their offsets from the start of the file."""
        offsets = []
        for entry in entries:
            self._entries.append(entry)
            offsets.append(self._end)
            self._end += entry.nbytes
        return tuple(offsets)

    def write(
        self, form: str, offsets: tuple[int, ...], block: Block, before: int, marks: Array, values: Array
    ) -> None:
        """Put what changes in a block into its places; from any thread.

        Args:
            form: "indices" or "bitmap".
            offsets: of its entries.
            block: begins at a multiple of CHUNK.
            before: how many values of the tensor lie before it.
            marks: uint64 [ceil(n / 64)].
            values: [marks].
        """
        if form == "indices":
            self.file.write(bits.places(marks, block.start, values.size), offsets[0] + 4 * before)
        else:
            self.file.write(bits.as_bytes(marks, block.elements), offsets[0] + block.start // 8)
        self.file.write(values, offsets[1] + before * DTYPES[block.tensor.dtype].itemsize)

    def ranked(self, counts: Array) -> None:
        """A tensor of form `indices` or `bitmap` is written: how many values each CHUNK of it has."""
        self._ranks.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))

    def finish(self, manifest: Manifest, data: bytes) -> int:
        """Write what tells the rest, then the header; the file appears, of so many bytes.

        Args:
            manifest: of the entries.
            data: of FILES.
        """
        ranks = np.concatenate(self._ranks) if self._ranks else np.empty(0, np.int64)
        for name, array in {RANKS: ranks, FILES: _bytes(data), MANIFEST: _bytes(manifest.encode())}.items():
            spec = TensorSpec(name, "U8" if array.dtype == np.uint8 else "I64", (array.size,))
            self.file.write(array, *self.place((spec,)))
        header = encode_header(self._entries, metadata_of(manifest), self._header)
        assert len(header) == self._header, "room was kept for the longest header"
        self.file.write(_bytes(header), 0)
        self.file.publish(self._end)
        return self._end


def _bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)
