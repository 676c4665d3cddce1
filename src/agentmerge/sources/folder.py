"""The weight files of one folder, or one such file, read block by block: safetensors, or what torch.save wrote."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import Note, Where, shortened
from agentmerge.files.documents import abbreviated, dangling, leads_nowhere
from agentmerge.files.header import Header, header_of
from agentmerge.files.open_files import OpenFiles
from agentmerge.files.os_errors import source_errors
from agentmerge.files.positional import advise_sequential, open_to_read, read_into
from agentmerge.files.reading import Extent
from agentmerge.files.torch_header import SUFFIXES, torch_header
from agentmerge.sources.copies import SAMPLED, differ, first_difference, pieces
from agentmerge.sources.index import refuse_other
from agentmerge.sources.placed import room_for
from agentmerge.sources.source import NOWHERE, Extents, Identity, SourceFile, Stored
from agentmerge.tensors import DTYPES, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.files.header import Strided
    from agentmerge.sources.index import Choice

    Reader = Callable[[int, Path], Header]


class FolderWeights:
    """The tensors of weight files; every header is read and checked at once, but no data."""

    def __init__(self, text: str, folder: Path, choice: Choice, reader: Reader | None = None) -> None:
        """Read the headers.

        Args:
            text: what the user wrote, for messages.
            folder: where the files lie.
            choice: which of them.
            reader: of a file's header; by default that of safetensors or of torch.save, by its name.

        Raises:
            SourceError: a file is missing or broken, or does not hold what the index says.
        """
        self._text = text
        headers = {name: _header(folder, name, reader) for name in choice.files}
        self.identity = Identity(folder, tuple(file for file, _ in headers.values()))
        self.metadata = {key: value for _, header in headers.values() for key, value in header.metadata.items()}
        self._open = OpenFiles(self._reopen)
        held = {name: header for name, (_, header) in headers.items()}
        self._places, self._copies = self._placed(folder, choice, held)
        self.specs: Mapping[str, TensorSpec] = {name: place.spec for name, place in self._places.items()}
        self.notes = (*choice.notes, *_repeated(self._copies))
        self.strided = {name: place.strided for name, place in self._places.items() if place.strided is not None}

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read.

        Raises:
            SourceError: no such tensor, another shard has other numbers for it, or its file was truncated, changed or
                can't be read any more.
            ValueError: the block ends beyond the tensor, or `out` does not fit it.
        """
        out = room_for(block, self.specs, self._text, out)
        place = self._places[block.tensor.name]
        self._read(place, block, out)
        for copy in self._copies.get(block.tensor.name, ()):
            found = np.empty_like(out)
            self._read(copy, block, found)
            if (first := first_difference(block, out, found)) is not None:
                how = f"with another number at element {first:,} of {place.spec.elements:,}"
                raise differ(block.tensor.name, place.file.path, copy.file.path, how)
        return out

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        place = self._places.get(block.tensor.name)
        if place is None or block.stop > place.spec.elements:
            return NOWHERE
        itemsize = DTYPES[place.spec.dtype].itemsize
        copies = self._copies.get(block.tensor.name, ())
        parts = (
            Extent(one.file, one.offset + block.start * itemsize, block.elements * itemsize) for one in (place, *copies)
        )
        return Extents(tuple(parts), verbatim=not copies)

    def compare_copies(self) -> None:
        """Read pieces of tensors that lie in several shards, to tell at once if the copies are not the same.

        Raises:
            SourceError: they differ, or can't be read.
        """
        for name in islice(self._copies, SAMPLED):
            for block in pieces(self.specs[name]):
                self.read(block)

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        spec = self.specs[name]
        return (Stored(spec.dtype, spec.elements),)

    def close(self) -> None:
        """Close the files; reading is an error from now on."""
        self._open.close()

    def _read(self, place: _Place, block: Block, out: Array) -> None:
        path = place.file.path
        with (
            source_errors(f"{path}: tensor {abbreviated(block.tensor.name)}", path),
            self._open.borrow(place.file.name) as fd,
        ):
            read_into(fd, out, place.offset + block.start * out.itemsize)

    def _reopen(self, name: str) -> int:
        file = next(file for file in self.identity.files if file.name == name)
        path = self.identity.folder / name
        fd = open_to_read(path)
        try:
            file.check(path, os.fstat(fd))
            advise_sequential(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _placed(
        self, folder: Path, choice: Choice, headers: Mapping[str, Header]
    ) -> tuple[dict[str, _Place], dict[str, list[_Place]]]:
        """Where every tensor lies, and where else the same one lies."""
        places: dict[str, _Place] = {}
        copies: dict[str, list[_Place]] = {}
        for file, header in headers.items():
            stored = _StoredFile(folder / file, self._open, file)
            for name, entry in header.tensors.items():
                place = _Place(stored, header.data_start + entry.begin, entry.spec, header.strided.get(name))
                if choice.owners is None or choice.owners.get(name) == file:
                    places[name] = place
                else:
                    copies.setdefault(name, []).append(place)
        if choice.owners is not None:
            refuse_other(folder / choice.index, choice.owners, {file: one.tensors for file, one in headers.items()})
        for name, others in copies.items():
            for other in others:
                places[name].check_like(other)
        return places, copies


@dataclass(frozen=True, slots=True, eq=False)
class _StoredFile:
    """A file of a folder that opens when it is first borrowed."""

    path: Path
    files: OpenFiles
    name: str

    @contextmanager
    def borrow(self) -> Iterator[int]:
        """Its descriptor.

        Raises:
            SourceError: it changed or can't be opened any more.
        """
        with source_errors(str(self.path)):
            fd = self.files.take(self.name)
        try:
            yield fd
        finally:
            self.files.give(self.name)


@dataclass(frozen=True, slots=True)
class _Place:
    file: _StoredFile
    offset: int  # bytes from the file's start
    spec: TensorSpec
    strided: Strided | None
    """None: it lies row by row."""

    def check_like(self, copy: _Place) -> None:
        """Raise SourceError where another shard has the tensor in another form."""
        if (self.spec, self.strided) != (copy.spec, copy.strided):
            raise differ(self.spec.name, self.file.path, copy.file.path, f"as {_form(copy)}, not {_form(self)}")


def _form(place: _Place) -> str:
    """Dtype and shape, and how it lies where that is not row by row."""
    if place.strided is None:
        return f"{place.spec.dtype} {list(place.spec.shape)}"
    return f"{place.spec.dtype} {list(place.strided.shape)} with strides {list(place.strided.strides)}"


def _header(folder: Path, name: str, reader: Reader | None) -> tuple[SourceFile, Header]:
    path = folder / name
    if leads_nowhere(path):
        raise dangling(path)
    with source_errors(str(path)):
        fd = open_to_read(path)
        try:
            usual = torch_header if name.endswith(SUFFIXES) else header_of
            header = (reader or usual)(fd, path)
            state = os.fstat(fd)
        finally:
            os.close(fd)
    return SourceFile(name, state.st_size, state.st_mtime_ns, header.sha256), header


def _repeated(copies: Mapping[str, Sequence[_Place]]) -> Iterator[Note]:
    """What is to be said of tensors in several shards, by the shard that the index does not name."""
    names: dict[Path, list[str]] = {}
    for name, places in copies.items():
        for place in places:
            names.setdefault(place.file.path, []).append(name)
    for path, repeated in names.items():
        text = f"{path}: the index takes them from another shard, ignored here: {shortened(repeated)}"
        yield Note(text, where=Where(path=str(path)))
