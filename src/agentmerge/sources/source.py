"""What is read, as a value: its tensors, where they lie, and what tells them from others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentmerge.errors import Note, Role, SourceError, Where
from agentmerge.files.os_errors import source_errors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agentmerge.files.reading import Extent
    from agentmerge.sources.hub import Snapshot
    from agentmerge.tensors import Array, Block, TensorSpec


@dataclass(frozen=True, slots=True)
class Stored:
    """How consecutive elements of a tensor are stored, whatever they are read as."""

    dtype: str
    """safetensors spelling."""
    elements: int
    factors: Callable[[int, int], Array] | None = None
    """Of quantised numbers: what the stored elements [start, stop) of these are multiplied by, float32 [n]."""

    def cut(self, start: int, stop: int) -> Stored:
        """The elements [start, stop) of these."""
        whole = self.factors
        factors = None if whole is None else lambda low, high: whole(start + low, start + high)
        return Stored(self.dtype, stop - start, factors)


@dataclass(frozen=True, slots=True)
class Extents:
    """Where the bytes of a block lie."""

    parts: tuple[Extent, ...]
    verbatim: bool
    """The parts one after another are the block as `Weights.read` gives it; else they are what reading it reads."""


NOWHERE = Extents((), verbatim=False)


class Weights(Protocol):
    """Named tensors that can be read block by block, from many threads, wherever and however they are stored."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor by name, in the order in which they are best read."""

    def read(self, block: Block, out: Array | None = None) -> Array:
        """The flat elements [start, stop) of the tensor of that name.

        Args:
            block: its tensor counts by its name alone: dtype and shape are those of `specs`.
            out: filled and returned when given: [block.elements], in the dtype of `specs`, contiguous.

        Returns:
            [block.elements] in the dtype of `specs`.

        Raises:
            SourceError: no such tensor, or its bytes can't be read.
        """

    def extents(self, block: Block) -> Extents:
        """Where its bytes lie, to read them together with those of other sources, or to fetch them ahead.

        Args:
            block: as for `read`; one that is not there has no parts.
        """

    def stored(self, name: str) -> tuple[Stored, ...]:
        """How the elements of a tensor are stored, range after range: what tells a change from a rounding.

        Args:
            name: of a tensor that is there.
        """


@runtime_checkable
class Over(Protocol):
    """Weights that are others' but for changes: whoever has read those can spare itself to read them again."""

    def under(self, block: Block) -> tuple[Weights, Block] | None:
        """Whose numbers a block has but for changes, and which; None where it has others, or is not there."""

    def put_over(self, block: Block, old: Array, out: Array) -> Array:
        """A block from what it is but for changes.

        Args:
            block: one that has something under it.
            old: the numbers of `under(block)`.
            out: of the block's dtype, written, and returned; it may be `old` where that has the same dtype.

        Raises:
            SourceError: the changes can't be read.
        """


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the files beside the weights lie."""

    path: Path
    whole: bool
    """False: the source is a single file, and what lies beside it may be anybody's."""

    def called(self, name: str) -> dict[str, str]:
        """What messages call this folder, as `Source.calls` has it: by its path, as it is and with links followed."""
        return {str(path): name for path in (self.path, self.path.resolve())}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One weight file and what tells whether it is still the same."""

    name: str
    """Relative to the source's folder."""
    size: int
    """Bytes."""
    mtime_ns: int
    header_sha256: str

    def check(self, path: Path, now: os.stat_result) -> None:
        """Raise SourceError where the file at `path` has another size or time than when it was opened."""
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(
                f"{path}: changed while in use: found {now.st_size} bytes of time {now.st_mtime_ns} ns",
                expected=f"{self.size} bytes of time {self.mtime_ns} ns",
                todo="Start again.",
                where=Where(path=str(path)),
            )


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a source's weights from others."""

    folder: Path
    files: tuple[SourceFile, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files themselves, links followed."""
        return tuple((self.folder / file.name).resolve() for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """Each file's name, size, mtime_ns and header hash."""
        return {"files": [asdict(file) for file in self.files]}

    def restat(self) -> None:
        """Raise SourceError when a file is gone, or has another size or time than when it was opened."""
        for file in self.files:
            path = self.folder / file.name
            with source_errors(str(path)):
                file.check(path, path.stat())


@dataclass(frozen=True)
class Source:
    """A checkpoint that is open, as stored or as seen by a view."""

    role: Role | None
    """None: it plays none in a merge, as the model whose importance is measured."""
    text: str
    """What the user wrote, for messages and records: a path or an id, never to be used as a path."""
    weights: Weights
    folder: Folder
    identity: Identity
    metadata: Mapping[str, str]
    """Of the files' headers."""
    notes: tuple[Note, ...] = ()
    """What is odd about it, or how it is seen."""
    snapshot: Snapshot | None = None
    """Of the hub; None where it is none."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """What messages call folders of ours that it lies in, by their paths."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Its tensors by name."""
        return self.weights.specs

    @property
    def unseen(self) -> bool:
        """Whether it is a model on the hub whose numbers are not here yet."""
        return self.snapshot is not None and self.snapshot.headers_only

    @property
    def told(self) -> dict[str, Any]:
        """What the user wrote, and what tells it from others, as JSON data; of the hub's models their commit, too."""
        commit = {} if self.snapshot is None else {"commit": self.snapshot.commit}
        return {"source": self.text, **commit, **self.identity.as_json()}

    @property
    def where(self) -> Where:
        """For what is to be said of it."""
        return Where(self.role, self.text)

    def noted(self, *notes: Note) -> Source:
        """The same source with some notes more."""
        return replace(self, notes=(*self.notes, *notes))

    def seen_as(self, weights: Weights, *notes: str) -> Source:
        """The same source through a view of its weights, and what is to be said of that."""
        return replace(self, weights=weights, notes=(*self.notes, *(Note(note, where=self.where) for note in notes)))
