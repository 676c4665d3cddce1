"""The weights of a packed delta over its base: a block reads the base's, and of the file what falls into the block.

The ranks of a tensor say how many values lie before every CHUNK of its elements, so that a block finds its values and
its part of the bitmap, or of the indices, without looking at any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.files.scratch import Scratch
from agentmerge.sources import bits
from agentmerge.sources.delta import INDICES, VALUES
from agentmerge.sources.packed_format import BITMAP, CHUNK, RANKS, WHOLE_TODO
from agentmerge.sources.placed import room_for
from agentmerge.sources.source import NOWHERE, Extents
from agentmerge.tensors import DTYPES, Array, Block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentmerge.files.reading import Extent
    from agentmerge.sources.packed_format import Manifest, Packed
    from agentmerge.sources.source import Stored, Weights
    from agentmerge.tensors import TensorSpec

    Room = Callable[[int, np.dtype[Any]], Array]
    """Gives an uninitialised array of so many elements of a dtype."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a block changes, from the beginning of the CHUNK that its first element is in."""

    start: int
    """Flat index of the first element that is spoken of, a multiple of CHUNK."""
    stop: int
    """Behind the last one: a multiple of CHUNK, or the tensor's end."""
    marks: Array
    """uint64 [ceil((stop - start) / 64)], see sources/bits.py."""
    values: Array
    """[marks + 1]; the last one means nothing."""

    def over(self, start: int, old: Array, out: Array) -> None:
        """The elements [start, start + out.size) with these changes.

        Args:
            start: at least `self.start`.
            old: the elements without them; it may be `out`.
            out: in the dtype of the values, written.
        """
        skip, marks, values = start - self.start, self.marks, self.values
        if skip or start + out.size != self.stop:
            before, inside = bits.parted(marks, skip, out.size)
            count = int(bits.count(inside, CHUNK).sum())
            marks, values = inside, values[before : before + count + 1]
        bits.put(values, marks, old, out)


class _Span(NamedTuple):
    """The chunks that a block touches."""

    start: int
    stop: int
    ranks: Array
    """How many values lie before each of them and, last, behind them."""

    @property
    def first(self) -> int:
        """The first of their values."""
        return int(self.ranks[0])

    @property
    def last(self) -> int:
        """Behind the last of them."""
        return int(self.ranks[-1])


_MARKS, _VALUES = Scratch(), Scratch()


class PackedWeights:
    """A packed delta over its base. A Weights."""

    def __init__(self, text: str, file: Weights, manifest: Manifest, base: Weights, path: str) -> None:
        """See the class.

        Args:
            text: what the user wrote, for messages.
            file: the entries of the delta's file.
            manifest: what they mean; it fits the entries and the base.
            base: what they lie over.
            path: of the file, for messages.
        """
        self._text, self._path = text, path
        self.file, self.base, self.manifest = file, base, manifest
        self.packed: Mapping[str, Packed] = {tensor.name: tensor for tensor in manifest.tensors}
        self.specs: Mapping[str, TensorSpec] = {name: tensor.spec for name, tensor in self.packed.items()}
        self._first: dict[str, int] = {}
        first = 0
        for tensor in manifest.tensors:
            self._first[tensor.name] = first
            first += tensor.ranks
        self._ranks: dict[str, Array] = {}
        self._lock = Lock()

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
        out = room_for(block, self.specs, self._text, out)
        under = self.under(block)
        if under is None:
            return self.file.read(Block(self.specs[block.tensor.name], block.start, block.stop), out)
        self.base.read(under[1], out)
        return self.put_over(block, out, out)

    def under(self, block: Block) -> tuple[Weights, Block] | None:
        """See Over.under; None of a tensor that is kept whole."""
        tensor = self.packed.get(block.tensor.name)
        if tensor is None or tensor.base is None or tensor.form == "whole":
            return None
        return self.base, Block(self.base.specs[tensor.base], block.start, block.stop)

    def put_over(self, block: Block, old: Array, out: Array) -> Array:
        """See Over.put_over.

        Raises:
            SourceError: the file is damaged.
        """
        tensor = self.packed[block.tensor.name]
        span = self._span(tensor, block)
        if span is not None and tensor.form == "bitmap":
            self._marked(tensor, span, _MARKS.take, _VALUES.take).over(block.start, old, out)
            return out
        if old is not out:
            np.copyto(out, old)
        if span is None:
            return out
        places = self._places(tensor, span)
        low, high = np.searchsorted(places, [block.start, block.stop])
        values = self._values(tensor, span, _VALUES.take)[low:high]
        size = f"u{out.itemsize}"
        out.view(size)[places[low:high] - block.start] = values.view(size)
        return out

    def changes(self, block: Block) -> Changes | None:
        """What the file has of a block of a tensor that is not kept whole; None where it changes nothing.

        Raises:
            SourceError: the file is damaged.
        """
        tensor = self.packed[block.tensor.name]
        span = self._span(tensor, block)
        return None if span is None else self._marked(tensor, span, np.empty, np.empty)

    def ranks(self, name: str) -> Array:
        """How many values lie before every CHUNK of a tensor's elements and, last, how many there are, int64.

        Raises:
            SourceError: they are no such numbers.
        """
        with self._lock:
            if name in self._ranks:
                return self._ranks[name]
        tensor, first = self.packed[name], self._first[name]
        found = self.file.read(Block(self.file.specs[RANKS], first, first + tensor.ranks))
        steps = np.diff(found)
        if found[0] != 0 or found[-1] != tensor.changed or (steps < 0).any() or (steps > CHUNK).any():
            raise self._damaged(tensor, "has ranks that are none")
        with self._lock:
            return self._ranks.setdefault(name, found)

    def _span(self, tensor: Packed, block: Block) -> _Span | None:
        """The chunks that a block touches; None where nothing is changed in them."""
        if tensor.form == "same" or block.start == block.stop:
            return None
        low, high = block.start // CHUNK, -(-block.stop // CHUNK)
        ranks = self.ranks(tensor.name)[low : high + 1]
        return _Span(low * CHUNK, min(high * CHUNK, tensor.spec.elements), ranks) if ranks[0] < ranks[-1] else None

    def _marked(self, tensor: Packed, span: _Span, marks_in: Room, values_in: Room) -> Changes:
        elements = span.stop - span.start
        if tensor.form == "bitmap":
            entry, words = self.file.specs[tensor.name + BITMAP], marks_in(-(-elements // bits.WORD), bits.LITTLE)
            words[-1] = 0
            block = Block(entry, span.start // 8, -(-span.stop // 8))
            self.file.read(block, words.view(np.uint8)[: block.elements])
            marks = words.astype(np.uint64, copy=False)
            if (bits.count(marks, CHUNK) != np.diff(span.ranks)).any() or bits.beyond(marks, elements):
                raise self._damaged(tensor, "has other marks than values")
        else:
            marks = bits.marked(self._places(tensor, span) - np.int32(span.start), elements)
        return Changes(span.start, span.stop, marks, self._values(tensor, span, values_in))

    def _places(self, tensor: Packed, span: _Span) -> Array:
        """The flat places of what is changed, int32, increasing."""
        found = self.file.read(Block(self.file.specs[tensor.name + INDICES], span.first, span.last))
        if found[0] < span.start or found[-1] >= span.stop or (found[1:] <= found[:-1]).any():
            raise self._damaged(tensor, "has indices that do not increase, or leave their place")
        return found

    def _values(self, tensor: Packed, span: _Span, room: Room) -> Array:
        """What stands there now, and one element more that means nothing."""
        spec = self.file.specs[tensor.name + VALUES]
        values = room(span.last - span.first + 1, DTYPES[spec.dtype])
        self.file.read(Block(spec, span.first, span.last), values[:-1])
        return values

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        tensor = self.packed.get(block.tensor.name)
        if tensor is None or block.stop > tensor.spec.elements:
            return NOWHERE
        if tensor.form == "whole":
            return self.file.extents(Block(tensor.spec, block.start, block.stop))
        assert tensor.base is not None
        under = self.base.extents(Block(self.base.specs[tensor.base], block.start, block.stop))
        if tensor.form == "same":
            return under
        return Extents((*under.parts, *self._parts(tensor, block)), verbatim=False)

    def _parts(self, tensor: Packed, block: Block) -> Sequence[Extent]:
        """What of the file is read for a block; the ranks, which are small and read once, aside."""
        span = self._span(tensor, block)
        if span is None:
            return ()
        specs, indexed = self.file.specs, tensor.form == "indices"
        begin, end = (span.first, span.last) if indexed else (span.start // 8, -(-span.stop // 8))
        places = Block(specs[tensor.name + (INDICES if indexed else BITMAP)], begin, end)
        values = Block(specs[tensor.name + VALUES], span.first, span.last)
        return (*self.file.extents(places).parts, *self.file.extents(values).parts)

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        tensor = self.packed[name]
        if tensor.base is None or tensor.form == "whole":
            return self.file.stored(name)
        return self.base.stored(tensor.base)

    def _damaged(self, tensor: Packed, what: str) -> SourceError:
        where = Where(tensor=tensor.name, path=self._path)
        return SourceError(f"{self._path}: tensor {abbreviated(tensor.name)} {what}", todo=WHOLE_TODO, where=where)
