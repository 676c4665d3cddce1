"""What trainers leave in parts, opened as a whole: files of FSDP's processes, distributed checkpoints of torch."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from agentmerge.errors import Note, SourceError, Where, shortened
from agentmerge.sources.distributed import FILE, distributed
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.index import Choice
from agentmerge.sources.parted import PartedWeights
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.sources.rank_files import notes_of, put_together, ranks_of
from agentmerge.sources.rounded import RoundedWeights, narrower
from agentmerge.sources.source import Folder, Identity, Source
from agentmerge.sources.strided import in_rows
from agentmerge.sources.trainers import BELOW, VERL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.errors import Role
    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.parted import Parted
    from agentmerge.sources.source import SourceFile

BESIDE = "huggingface"
"""Where verl puts config and tokenizer, below the folder of the parts."""


@dataclass(frozen=True)
class _Opened:
    """The parts of one folder, and what they are parts of."""

    stored: FolderWeights
    tensors: Mapping[str, Parted]
    notes: tuple[Note, ...]
    more: tuple[SourceFile, ...] = ()
    """Files that tell where the parts lie."""

    @property
    def in_order(self) -> dict[str, Parted]:
        """The tensors as their first parts lie in the files."""
        places = {name: i for i, name in enumerate(self.stored.specs)}
        first = {name: places[tensor.parts[0].name] if tensor.parts else -1 for name, tensor in self.tensors.items()}
        return dict(sorted(self.tensors.items(), key=lambda item: first[item[0]]))


@contextmanager
def open_trained(
    role: Role | None, text: str, folder: Path, base: Source | None, materialize: Materialize
) -> Iterator[Source]:
    """The whole of a folder's parts.

    Args:
        role: who it is.
        text: what the user wrote.
        folder: where the parts lie, from `trainers.parts_at`.
        base: what an agent is an agent of.
        materialize: whether what the trainer keeps in a wider dtype than the base's is read as it would be saved.

    Raises:
        SourceError: parts lack or contradict each other.
    """
    where = Where(role, text, path=str(folder))
    names = sorted(path.name for path in folder.iterdir())
    divided = any(VERL.match(name) for name in names)
    opened = _ranks(text, folder, names, base, where) if divided else _chunks(text, folder, where)
    try:
        weights = PartedWeights(text, in_rows(opened.stored, text), opened.in_order)
        dtypes = narrower(weights.specs, base.specs) if base is not None else {}
        home, rounded = _home(folder), bool(dtypes) and materialize == "base_dtype"
        files = (*opened.stored.identity.files, *opened.more)
        source = Source(
            role=role,
            text=text,
            weights=RoundedWeights(text, weights, dtypes) if rounded else weights,
            folder=Folder(home or folder, whole=True),
            identity=Identity(folder, tuple(_as_read(file, dtypes) for file in files) if rounded else files),
            metadata={},
            notes=opened.notes,
        )
        yield source if base is None else source.noted(*_said(source, home, dtypes, materialize, where))
    finally:
        opened.stored.close()


def _ranks(text: str, folder: Path, names: Sequence[str], base: Source | None, where: Where) -> _Opened:
    ranks = ranks_of(folder, names)
    stored = FolderWeights(text, folder, Choice(tuple(sorted(ranks.files.values()))), ranks.header)
    try:
        like = _Shapes(base).of if base is not None else None
        return _Opened(stored, put_together(ranks, folder, like), tuple(notes_of(ranks, where)))
    except BaseException:
        stored.close()
        raise


def _chunks(text: str, folder: Path, where: Where) -> _Opened:
    if not (folder / FILE).exists():
        todo = "Copy the whole folder, hidden files included: it says where every tensor lies."
        raise SourceError(f"{folder}: found .distcp files and no {FILE}", expected=FILE, todo=todo, where=where)
    found = distributed(folder)
    stored = FolderWeights(text, folder, Choice(tuple(sorted(found.chunks))), found.header)
    try:
        return _Opened(stored, found.put_together(), tuple(found.notes(where)), (found.identity,))
    except BaseException:
        stored.close()
        raise


class _Shapes:
    """The shapes of the base's tensors, by names with or without prefixes."""

    def __init__(self, base: Source) -> None:
        self._specs, self._known = base.specs, by_common_name(base.specs)

    def of(self, name: str) -> tuple[int, ...] | None:
        """Of the tensor that has this name."""
        match = name if name in self._specs else self._known.get(common_name(name))
        return self._specs[match].shape if match is not None else None


def _home(folder: Path) -> Path | None:
    """The folder with the config that goes with the parts; None where the trainer left none."""
    homes = [folder / BESIDE, folder, *([folder.parent] if BELOW.match(folder.name) else [])]
    return next((home for home in homes if (home / "config.json").exists()), None)


def _as_read(file: SourceFile, dtypes: Mapping[str, str]) -> SourceFile:
    """A file whose hash also tells how its tensors are rounded: a survey of other numbers is none of these."""
    told = f"{file.header_sha256} {sorted(dtypes.items())}"
    return replace(file, header_sha256=sha256(told.encode("utf-8", "surrogatepass")).hexdigest())


def _said(
    source: Source, home: Path | None, dtypes: Mapping[str, str], materialize: Materialize, where: Where
) -> Iterator[Note]:
    """What is to be said of how an agent's parts are read.

    Args:
        source: the whole.
        home: where its config lies.
        dtypes: the base's, of the tensors that have a wider one.
        materialize: which of both is read.
        where: for the notes.
    """
    if home is None:
        text = f"{where.source}: no config.json beside the parts: its config and tokenizer are taken to be the base's"
        yield Note(text, where=where)
    elif home != source.identity.folder:
        yield Note(f"{where.source}: its config and tokenizer are those of {home}", where=where, severity="note")
    if dtypes:
        kinds, exact = shortened(sorted(set(dtypes.values()))), materialize == "exact"
        how = "read exactly" if exact else f"read in the base's ({kinds}), as they would have been saved"
        text = f"{where.source}: {len(dtypes)} tensors are stored in a wider dtype than the base's, {how}"
        todo = f"`materialize: {'base_dtype' if exact else 'exact'}` reads them the other way."
        yield Note(text, todo, where, severity="note")
