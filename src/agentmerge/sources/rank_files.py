"""The parts of a model that FSDP divided among processes, one file of torch.save for each, as verl writes them.

    model_world_size_N_rank_R.pt     name: DTensor, ShardedTensor or plain tensor

Every process holds a part of most tensors, copies where the mesh replicates, and copies of what was never divided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.errors import Note, SourceError, SourceNotFoundError, Where, shortened
from agentmerge.files.documents import abbreviated, json_or_nothing
from agentmerge.files.header import METADATA, Header, Strided, TensorEntry
from agentmerge.files.pickles import Call
from agentmerge.files.positional import read_into
from agentmerge.files.torch_archive import read_archive, refuse
from agentmerge.files.torch_header import ALONE, in_order, kind
from agentmerge.files.torch_tensors import tensor_of
from agentmerge.sources.dtensors import CALLS, MOST_PROCESSES, RECORDS, Process, wrong
from agentmerge.sources.parted import Box, Part, Parted, parted
from agentmerge.sources.trainers import VERL
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.files.zips import Member

    Shapes = Callable[[str], tuple[int, ...] | None]

CONFIG = "fsdp_config.json"
EXTRA = "_extra_state"
"""How the names end of what modules save beside their tensors, such as the scales of FP8."""
COMPARED = 1 << 20
"""Bytes of a tensor whose copies are compared when they are opened."""
FETCH = "Copy the files of every process into one folder: each machine wrote those of its own."
APART = "Remove those of the other run, so that one set of files is there."
PLAIN = (
    "Give it as an agent, with its base, whose shapes tell; or put it together with the trainer's own converter, and "
    "give the safetensors that it writes."
)


@dataclass(frozen=True)
class Held:
    """What one process holds of one tensor."""

    shape: tuple[int, ...] | None
    """Of the whole; None where its record does not say it."""
    parts: tuple[tuple[Box, TensorSpec], ...]
    """Each box, and the tensor that is stored for it."""
    content: bytes | None
    """Of a small plain tensor, to be compared with its copies."""


@dataclass
class Ranks:
    """The files of the processes of one run, and what was read of them."""

    world: int
    files: Mapping[int, str]
    """By rank; some may lack."""
    held: dict[int, dict[str, Held]] = field(default_factory=dict)
    extra: set[str] = field(default_factory=set)
    """Entries that are no weights."""

    @property
    def lacking(self) -> list[int]:
        """The ranks without a file."""
        return [rank for rank in range(self.world) if rank not in self.files]

    def header(self, fd: int, path: Path) -> Header:
        """A `folder.Reader`: every part under the name "NAME (rank R)"."""
        rank = next(rank for rank, name in self.files.items() if name == path.name)
        archive = read_archive(fd, path, CALLS, RECORDS)
        if not isinstance(archive.value, dict):
            refuse(path, f"a pickle of {kind(archive.value)}", "tensors by name", ALONE)
        reading = _Reading(fd, path, rank, archive.storages)
        self.held[rank] = {}
        for name, value in archive.value.items():
            if isinstance(name, str) and name.endswith(EXTRA):
                self.extra.add(name)
                continue
            if not isinstance(name, str) or not isinstance(value, Call) or name == METADATA:
                refuse(path, f"its entry {abbreviated(name)} is {kind(value)}", "tensors by name", ALONE)
            self.held[rank][name] = reading.held(name, value)
        return Header(in_order(reading.entries), {}, 0, archive.sha256, reading.strided)


@dataclass
class _Reading:
    """One file while its header is read."""

    fd: int
    path: Path
    rank: int
    storages: Mapping[str, Member]
    entries: dict[str, TensorEntry] = field(default_factory=dict)
    strided: dict[str, Strided] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._process = Process(self.rank, self._numbers)

    def held(self, name: str, value: Call) -> Held:
        """What this process holds of a tensor."""
        where = Where(tensor=name, path=str(self.path))
        local, parts, content = self._process.local(value, where), [], None
        for i, (box, record) in enumerate(local.parts):
            stored = f"{name} (rank {self.rank}{f', part {i}' if i else ''})"
            entry, layout = tensor_of(record, self.storages, Where(tensor=stored, path=str(self.path)))
            self.entries[stored] = entry
            if layout is not None:
                self.strided[stored] = layout
            shape = layout.shape if layout is not None else entry.spec.shape
            spec = TensorSpec(stored, entry.spec.dtype, shape)
            if box is not None and box.sizes != shape:
                raise wrong(where, f"has a part of shape {list(shape)} in rank {self.rank}", str(list(box.sizes)))
            if box is None and layout is None and spec.nbytes <= COMPARED:
                content = self._bytes(entry)
            parts.append((box or Box((0,) * len(shape), shape), spec))
        return Held(local.shape, tuple(parts), content)

    def _bytes(self, entry: TensorEntry) -> bytes:
        raw = bytearray(entry.end - entry.begin)
        read_into(self.fd, raw, entry.begin)
        return bytes(raw)

    def _numbers(self, record: Call) -> list[int]:
        where = Where(tensor="mesh", path=str(self.path))
        entry, layout = tensor_of(record, self.storages, where)
        if entry.spec.dtype not in ("I32", "I64") or entry.spec.elements > MOST_PROCESSES:
            raise wrong(where, f"is {entry.spec.dtype} {list(entry.spec.shape)}", "the ranks of the processes")
        lying = np.frombuffer(self._bytes(entry), DTYPES[entry.spec.dtype])
        if layout is not None:
            steps = [stride * lying.itemsize for stride in layout.strides]
            lying = np.lib.stride_tricks.as_strided(lying, layout.shape, steps, writeable=False)
        found: list[int] = lying.reshape(-1).tolist()
        return found


def ranks_of(folder: Path, names: Sequence[str]) -> Ranks:
    """The files of one run.

    Args:
        folder: where they lie.
        names: of everything in it.

    Raises:
        SourceError: they are of several runs, or fsdp_config.json speaks of another one.
    """
    found = [(int(match["world"]), int(match["rank"]), name) for name in names if (match := VERL.match(name))]
    worlds, where = sorted({world for world, _, _ in found}), Where(path=str(folder))
    told = json_or_nothing(folder / CONFIG).get("world_size")
    says = f"; {CONFIG} says {told}" if isinstance(told, int) else ""
    if len(worlds) > 1:
        text = f"{folder}: found the files of runs of {' and of '.join(map(str, worlds))} processes{says}"
        raise SourceError(text, expected="those of one", todo=APART, where=where)
    if isinstance(told, int) and told != worlds[0]:
        text = f"{folder}: found the files of a run of {worlds[0]} processes{says}"
        raise SourceError(text, expected="the same number", todo=APART, where=where)
    files: dict[int, str] = {}
    for world, rank, name in sorted(found):
        if rank >= world or rank in files or world > MOST_PROCESSES:
            expected = f"each of the ranks 0 to {world - 1} once"
            raise SourceError(f"{folder}: found {name}", expected=expected, todo=APART, where=where)
        files[rank] = name
    return Ranks(worlds[0], files)


def put_together(ranks: Ranks, folder: Path, like: Shapes | None) -> dict[str, Parted]:
    """Every tensor of a run by name, once each is there from all of its parts.

    Args:
        ranks: whose headers were read.
        folder: for messages.
        like: the shape that a tensor of a name has in the base, for records which do not say it; None without a base.

    Raises:
        SourceError: parts lack, overlap or contradict each other.
    """
    names = {name: None for held in ranks.held.values() for name in held}
    whole = _Whole(ranks, folder, like)
    try:
        return {name: whole.tensor(name) for name in names}
    except SourceError as error:
        if not ranks.lacking:
            raise
        text = f"{folder}: the files of ranks {shortened(map(str, ranks.lacking), 16)} of {ranks.world} are not there"
        found = SourceNotFoundError(text, expected="every rank", todo=FETCH, where=Where(path=str(folder)))
        raise SourceNotFoundError(*found.problems, *error.problems) from None


def notes_of(ranks: Ranks, where: Where) -> list[Note]:
    """What was left out, and what lacks without harm."""
    notes = []
    if ranks.extra:
        notes.append(Note(f"{where.path}: no weights, ignored: {shortened(sorted(ranks.extra))}", where=where))
    if ranks.lacking:
        text = f"{where.path}: ranks {shortened(map(str, ranks.lacking), 16)} of {ranks.world} are not there"
        notes.append(Note(f"{text}; they hold copies of what the others hold", where=where))
    return notes


@dataclass(frozen=True)
class _Whole:
    """Puts the tensors of all processes together."""

    ranks: Ranks
    folder: Path
    like: Shapes | None

    @property
    def divided(self) -> bool:
        """Whether any tensor says that it was divided: then one which does not was never divided."""
        return any(held.shape is not None for by in self.ranks.held.values() for held in by.values())

    def tensor(self, name: str) -> Parted:
        """One of them."""
        path, where = str(self.folder), Where(tensor=name, path=str(self.folder))
        held = {rank: by[name] for rank, by in sorted(self.ranks.held.items()) if name in by}
        if len(held) < len(self.ranks.held):
            without = shortened(str(rank) for rank in self.ranks.held if rank not in held)
            raise wrong(where, f"is not in the files of ranks {without}", "it in every file")
        shape = self._one({one.shape for one in held.values()}, "shapes", where)
        dtypes = {spec.dtype for one in held.values() for _, spec in one.parts}
        parts = [Part(box, spec.name) for one in held.values() for box, spec in one.parts]
        if shape is None:
            shape, parts = self._plain(name, list(held.values()), parts, where)
        return parted(TensorSpec(name, self._one(dtypes, "dtypes", where), shape), parts, path)

    def _one(self, found: set[Any], what: str, where: Where) -> Any:
        if len(found) != 1:
            text = ", ".join(sorted(str(list(value) if isinstance(value, tuple) else value) for value in found))
            raise wrong(where, f"has several {what} in the files of the ranks: {text}", "one")
        return found.pop()

    def _plain(
        self, name: str, held: list[Held], parts: list[Part], where: Where
    ) -> tuple[tuple[int, ...], list[Part]]:
        """Tensors that do not say what they are a part of: copies, or rows one below the other.

        Returns:
            The shape of the whole, and its parts.
        """
        shapes = [part.box.sizes for part in parts]
        expected = self.like(name) if self.like is not None else None
        stacked = bool(shapes[0]) and {shape[1:] for shape in shapes} == {shapes[0][1:]}
        if len(set(shapes)) == 1 and (self.ranks.world == 1 or self.divided or expected == shapes[0]):
            if len({one.content for one in held}) > 1:
                raise wrong(where, "was not divided, and differs between the ranks", "the same copy in every file")
            return shapes[0], parts[:1]
        if not self.divided and stacked and expected == (sum(shape[0] for shape in shapes), *shapes[0][1:]):
            if self.ranks.lacking:
                raise wrong(where, "is in parts of which some lack", "all of them")
            return expected, _below(parts)
        text = f"does not say which part of it a rank holds; the ranks have {shortened(str(list(s)) for s in shapes)}"
        hoped = f"the base's {list(expected)}, whole or divided by rows" if expected else "shapes that tell"
        raise wrong(where, text, hoped, PLAIN)


def _below(parts: list[Part]) -> list[Part]:
    """Parts by their rows, one below the other."""
    moved, row = [], 0
    for part in parts:
        moved.append(Part(Box((row, *part.box.offsets[1:]), part.box.sizes), part.name))
        row += part.box.sizes[0]
    return moved
