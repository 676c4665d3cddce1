"""One checkpoint seen under other names, shapes or numbers: every view looks like a checkpoint. Knows no agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.tensors import DTYPES, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping
    from pathlib import Path

    from agentmerge.files.positional import Span
    from agentmerge.sources.folder import Opened, SourceFile


class View(ABC):
    """Another checkpoint's files with other tensors; subclasses say which."""

    def __init__(self, inner: Opened, specs: Mapping[str, TensorSpec], notes: tuple[str, ...] = ()) -> None:
        self._inner = inner
        self.specs = specs
        self.warnings = (*inner.warnings, *notes)

    @property
    def source(self) -> str:
        """What the user wrote."""
        return self._inner.source

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._inner.folder

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The weight files."""
        return self._inner.files

    @property
    def metadata(self) -> Mapping[str, str]:
        """Of the files' headers."""
        return self._inner.metadata

    def identity(self) -> dict[str, Any]:
        """The files' own."""
        return self._inner.identity()

    def restat(self) -> None:
        """See FolderCheckpoint.restat."""
        self._inner.restat()

    @abstractmethod
    def read(self, block: Block, out: Array | None = None) -> Array:
        """The block's elements, [n] in the dtype of this view's tensor; see Checkpoint.read."""

    def span(self, block: Block) -> Span | None:
        """See Opened.span."""
        return None

    @abstractmethod
    def expect(self, block: Block) -> None:
        """Let the OS fetch what a read of this block needs."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A flat range of a stored tensor, or zeros where no checkpoint is named."""

    checkpoint: Opened | None
    tensor: str
    start: int
    elements: int


class Composed(View):
    """Tensors laid together from flat ranges of stored ones: renamed, cut out of a stack, stacked, or extended."""

    def __init__(
        self,
        inner: Opened,
        specs: Mapping[str, TensorSpec],
        pieces: Mapping[str, tuple[Piece, ...]],
        notes: tuple[str, ...] = (),
    ) -> None:
        """See the class.

        Args:
            inner: whose files they mostly are.
            specs: the tensors of the view.
            pieces: per tensor its ranges in order; a tensor that is absent here is read from `inner` under its name.
            notes: told as warnings.
        """
        super().__init__(inner, specs, notes)
        self._pieces = pieces

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Checkpoint.read."""
        spec = self.specs[block.tensor.name]
        if block.tensor.name not in self._pieces:
            return self._inner.read(block, out)
        out = np.empty(block.elements, DTYPES[spec.dtype]) if out is None else out
        for piece, part, at in self._parts(block):
            room = out[at : at + part.elements]
            if piece.checkpoint is None:
                room.fill(0)
            elif piece.checkpoint.specs[piece.tensor].dtype == spec.dtype:
                piece.checkpoint.read(part, room)
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    room[:] = piece.checkpoint.read(part).astype(room.dtype)
        return out

    def span(self, block: Block) -> Span | None:
        """See Opened.span."""
        if block.tensor.name not in self._pieces:
            return self._inner.span(block)
        dtype = self.specs[block.tensor.name].dtype
        parts = list(self._parts(block))
        if len(parts) != 1:
            return None
        piece, part, _ = parts[0]
        if piece.checkpoint is None or piece.checkpoint.specs[piece.tensor].dtype != dtype:
            return None
        return piece.checkpoint.span(part)

    def expect(self, block: Block) -> None:
        """See View.expect."""
        if block.tensor.name not in self._pieces:
            self._inner.expect(block)
            return
        for piece, part, _ in self._parts(block):
            if piece.checkpoint is not None:
                piece.checkpoint.expect(part)

    def _parts(self, block: Block) -> Iterator[tuple[Piece, Block, int]]:
        """The stored blocks that a block of the view is made of, and where each begins in it."""
        first = 0
        for piece in self._pieces[block.tensor.name]:
            low, high = max(block.start, first), min(block.stop, first + piece.elements)
            if low < high:
                spec = block.tensor if piece.checkpoint is None else piece.checkpoint.specs[piece.tensor]
                shift = piece.start - first
                yield piece, Block(spec, low + shift, high + shift), low - block.start
            first += piece.elements


def without(checkpoint: Opened, left_out: Container[str], notes: tuple[str, ...] = ()) -> Composed:
    """The checkpoint without some of its tensors."""
    return Composed(checkpoint, {n: s for n, s in checkpoint.specs.items() if n not in left_out}, {}, notes)


def widest(dtypes: Iterable[str]) -> str:
    """A dtype that holds the numbers of all these exactly, so that tensors laid together keep every bit."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    return "F64" if "F64" in found else "F32"


def whole(checkpoint: Opened, tensor: str) -> tuple[Piece, ...]:
    """One stored tensor, all of it."""
    return (Piece(checkpoint, tensor, 0, checkpoint.specs[tensor].elements),)
