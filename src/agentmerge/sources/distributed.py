"""Distributed checkpoints of torch: chunks of tensors in .distcp files, and a pickle that says which lies where.

    .metadata          state_dict_metadata: {name: size, dtype, chunks [offsets, sizes]}
                       planner_data: {name: path}, the keys of the nested state dict
                       storage_data: {(name, offsets): file, offset, length}
    __R_F.distcp       at offset, in length bytes: an archive of torch.save of one tensor, the chunk

What is trained beside the model (the optimizer's state, schedulers, loaders) is told apart by the path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from agentmerge.errors import Note, SourceNotFoundError, Where, shortened
from agentmerge.files.documents import DEEPEST, abbreviated, read_bytes
from agentmerge.files.header import LIMIT, METADATA, Header, Strided, TensorEntry
from agentmerge.files.os_errors import AGAIN, source_errors
from agentmerge.files.pickles import Call, Record
from agentmerge.files.torch_archive import read_archive, read_pickle, refuse
from agentmerge.files.torch_header import in_order
from agentmerge.files.torch_tensors import CALLS, dtype_of, tensor_of
from agentmerge.files.zips import Member
from agentmerge.sources.dtensors import SIZE, size_of, wrong
from agentmerge.sources.parted import Box, Part, Parted, parted
from agentmerge.sources.source import SourceFile
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILE = ".metadata"
MADE = "torch.distributed.checkpoint.metadata"
INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
ASKED = frozenset({
    SIZE, "torch.serialization._get_layout", f"{MADE}._MEM_FORMAT_ENCODING", "pathlib.PosixPath", "pathlib.WindowsPath",
    "pathlib._local.PosixPath", "pathlib._local.WindowsPath",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
})  # fmt: skip
"""All that .metadata may ask to be called; nothing is."""
RECORDS = frozenset({
    f"{MADE}.{name}" for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
                                  "ChunkStorageMetadata", "MetadataIndex", "StorageMeta")
} | {INFO, "torch.distributed._shard.sharded_tensor.metadata.TensorProperties"})  # fmt: skip
"""The classes that it may have objects of; none is made."""
TRAINING = re.compile(
    r"optim|(?:lr_?)?sched|data_?loader|sampler|rng|random|train(?:er)?_(?:state|progress)|grad_?scaler|loss"
)
"""How a key of the nested state dict begins whose tensors are no weights."""
MODEL = ("model", "module", "state_dict", "model_state_dict", "actor", "policy")
"""A key whose tensors are the weights, where there are others beside it."""
FETCH = "Copy the files of every process into one folder: each machine wrote those of its own."
CONVERT = (
    "Put it together with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt`, load that "
    "into the model, and give the folder that save_pretrained writes."
)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a tensor, and where it is stored."""

    name: str
    """Of the stored part."""
    box: Box
    dtype: str
    within: Member


@dataclass
class Distributed:
    """What .metadata says of the weights."""

    folder: Path
    identity: SourceFile
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    chunks: dict[str, dict[str, list[_Chunk]]] = field(default_factory=dict)
    """By file and tensor."""
    ignored: list[str] = field(default_factory=list)
    """Keys beside the weights that are not known to be a trainer's."""
    training: int = 0
    """How many tensors are a trainer's."""

    def header(self, fd: int, path: Path) -> Header:
        """A `folder.Reader`: every chunk of the weights that the file holds.

        Raises:
            SourceError: one is not where .metadata says, or another tensor than it says.
        """
        entries: dict[str, TensorEntry] = {}
        strided: dict[str, Strided] = {}
        digest = sha256()
        for name, chunks in self.chunks[path.name].items():
            for chunk in chunks:
                where = Where(tensor=name, path=str(path))
                archive = read_archive(fd, path, CALLS, within=chunk.within)
                if not isinstance(archive.value, Call):
                    raise wrong(where, f"has {abbreviated(archive.value)} as a chunk", "a tensor")
                entry, layout = tensor_of(archive.value, archive.storages, Where(tensor=chunk.name, path=str(path)))
                shape = layout.shape if layout is not None else entry.spec.shape
                if shape != chunk.box.sizes or entry.spec.dtype != chunk.dtype:
                    found = f"has a chunk {entry.spec.dtype} {list(shape)} at {list(chunk.box.offsets)}"
                    raise wrong(where, found, f"{chunk.dtype} {list(chunk.box.sizes)} as {FILE} says")
                entries[chunk.name] = entry
                if layout is not None:
                    strided[chunk.name] = layout
                digest.update(archive.sha256.encode())
        return Header(in_order(entries), {}, 0, digest.hexdigest(), strided)

    def put_together(self) -> dict[str, Parted]:
        """Every tensor of the weights by name.

        Raises:
            SourceError: chunks lack or overlap.
        """
        parts: dict[str, list[Part]] = {name: [] for name in self.specs}
        for by in self.chunks.values():
            for name, chunks in by.items():
                parts[name] += [Part(chunk.box, chunk.name) for chunk in chunks]
        return {name: parted(spec, parts[name], str(self.folder / FILE)) for name, spec in self.specs.items()}

    def notes(self, where: Where) -> list[Note]:
        """What is left out."""
        notes = []
        if self.training:
            text = f"{self.folder}: tensors of the optimizer and of other state, left out: {self.training}"
            notes.append(Note(text, where=where, severity="note"))
        if self.ignored:
            text = f"{self.folder}: not part of the model, ignored: {shortened(self.ignored)}"
            notes.append(Note(text, where=where))
        return notes


def distributed(folder: Path) -> Distributed:
    """Read .metadata, and look that the files are there that hold the weights.

    Raises:
        SourceError: it is broken, contradicts itself, or files lack.
    """
    path = folder / FILE
    with source_errors(str(path)):
        state = path.stat()
    if state.st_size > LIMIT:
        refuse(path, f"{state.st_size} bytes", f"at most {LIMIT}", AGAIN)
    raw = read_bytes(path)
    found = read_pickle(raw, path, ASKED, RECORDS)
    if not isinstance(found, Record) or found.name != f"{MADE}.Metadata":
        refuse(path, f"a pickle of {abbreviated(found)}", "the metadata of a distributed checkpoint", AGAIN)
    identity = SourceFile(FILE, state.st_size, state.st_mtime_ns, sha256(raw).hexdigest())
    read = Distributed(folder, identity)
    reading = _Metadata(found.fields, path)
    names = reading.weights(read)
    for key, name in names.items():
        reading.tensor(key, name, read)
    missing = [file for file in read.chunks if not (folder / file).exists()]
    if missing:
        text = (
            f"{path}: {len(missing)} of the {len(read.chunks)} files with weights are not there: {shortened(missing)}"
        )
        raise SourceNotFoundError(text, expected="all of them", todo=FETCH, where=Where(path=str(path)))
    return read


class _Metadata:
    """The three mappings of .metadata."""

    def __init__(self, fields: Mapping[Any, Any], path: Path) -> None:
        self._path = path
        tensors, storage = fields.get("state_dict_metadata"), fields.get("storage_data")
        if not isinstance(tensors, dict) or not isinstance(storage, dict):
            refuse(path, "it has no state_dict_metadata or no storage_data", "both", AGAIN)
        planned = fields.get("planner_data")
        self._planned: dict[Any, Any] = planned if isinstance(planned, dict) else {}
        made = f"{MADE}.TensorStorageMetadata"
        self._tensors = {n: v for n, v in tensors.items() if isinstance(v, Record) and v.name == made}
        if not all(isinstance(name, str) for name in self._tensors):
            refuse(path, "a tensor whose name is no text", "names", AGAIN)
        self._places = dict(self._stored(storage))
        with source_errors(str(path)):
            self._sizes = {other.name: other.stat().st_size for other in path.parent.iterdir() if other.is_file()}

    def weights(self, read: Distributed) -> dict[str, str]:
        """The keys of the model's tensors, and their names without the keys of the mappings around them."""
        groups: dict[tuple[str, ...], dict[str, str]] = {}
        for key in self._tensors:
            path = self._planned.get(key)
            keys = tuple(map(str, path)) if isinstance(path, tuple) and path and _plain(path) else (key,)
            if any(TRAINING.match(part) for part in keys[:-1] or key.removeprefix("app.").split(".")[:1]):
                read.training += 1
            elif keys[-1] == METADATA:
                refuse(self._path, f"a tensor of the name {METADATA}", "another name", AGAIN)
            else:
                groups.setdefault(keys[:-1], {})[key] = keys[-1]
        models = [group for group in groups if group and group[-1] in MODEL] if len(groups) > 1 else list(groups)
        if len(models) != 1:
            names = [".".join(group) or "(no key)" for group in groups]
            text = f"tensors under {shortened(names)}" if groups else "no tensors but those of training"
            refuse(self._path, text, "those of one model", CONVERT)
        read.ignored += [key for group, names in groups.items() if group != models[0] for key in names]
        return groups[models[0]]

    def tensor(self, key: str, name: str, read: Distributed) -> None:
        """Note the shape of a tensor, and where its chunks lie."""
        where, about = Where(tensor=name, path=str(self._path)), self._tensors[key].fields
        if name in read.specs:
            raise wrong(where, "is there twice", "every name once")
        properties, chunks = about.get("properties"), about.get("chunks")
        state = properties.state if isinstance(properties, Record) else None
        if not isinstance(state, tuple) or not state or not isinstance(chunks, list):
            raise wrong(where, "has no dtype or no chunks", "both")
        dtype = dtype_of(state[0], where)
        read.specs[name] = TensorSpec(name, dtype, size_of(about.get("size"), where))
        for chunk in chunks:
            fields = chunk.fields if isinstance(chunk, Record) else {}
            box = Box(size_of(fields.get("offsets"), where), size_of(fields.get("sizes"), where))
            place = self._places.get((key, box.offsets))
            if place is None:
                raise wrong(where, f"has a chunk at {list(box.offsets)} that no file holds", "a file for each")
            stored = f"{name} (from {', '.join(map(str, box.offsets)) or 0})"
            file, within = self._place(place, where)
            read.chunks.setdefault(file, {}).setdefault(name, []).append(_Chunk(stored, box, dtype, within))

    def _place(self, info: Record, where: Where) -> tuple[str, Member]:
        fields = info.fields
        file, offset, length = (fields.get(name) for name in ("relative_path", "offset", "length"))
        if fields.get("transform_descriptors"):
            text = f"is stored by way of {abbreviated(fields['transform_descriptors'])}"
            raise wrong(where, text, "tensors as torch.save writes them", CONVERT)
        inside = isinstance(file, str) and len(PurePosixPath(file).parts) == 1 and file not in (".", "..", "/")
        if not inside or "\0" in str(file) or type(offset) is not int or type(length) is not int:
            raise wrong(where, f"lies in {abbreviated(file)}, {abbreviated(offset)}", "a place in a file of the folder")
        size = self._sizes.get(str(file), offset + length)
        if not 0 <= offset <= offset + length <= size:
            raise wrong(where, f"lies in {file} up to byte {offset + length}, which has {size}", "a place inside of it")
        return str(file), Member(offset, offset + length)

    def _stored(self, storage: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, tuple[int, ...]], Record]]:
        """Every chunk of a tensor by name and offsets, and what is said of its place."""
        seen = set()
        for index, info in storage.items():
            fields = index.fields if isinstance(index, Record) else {}
            name, offset = fields.get("fqn"), fields.get("offset")
            if not isinstance(name, str) or not isinstance(info, Record) or info.name != INFO:
                refuse(self._path, f"its storage_data has {abbreviated(index)}", "the place of a chunk", AGAIN)
            if name not in self._tensors:
                continue
            key = (name, size_of(offset, Where(tensor=name, path=str(self._path))))
            if key in seen:
                refuse(self._path, f"two places for the chunk of {abbreviated(name)} at {list(key[1])}", "one", AGAIN)
            seen.add(key)
            yield key, info


def _plain(path: tuple[Any, ...]) -> bool:
    """Whether these are the keys of nested mappings and lists."""
    return len(path) <= DEEPEST and all(isinstance(part, str | int) for part in path)
