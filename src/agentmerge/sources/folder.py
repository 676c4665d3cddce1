"""Open a checkpoint of safetensors files and read blocks of it. Knows nothing of agents or methods."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import numpy as np

from agentmerge.errors import SourceError, SourceNotFoundError, did_you_mean, shortened
from agentmerge.files.header import AGAIN, CONVERT, LIMIT, Header, header_of, naming, parse_json, shown
from agentmerge.files.layout import INDEX as INDEX
from agentmerge.files.positional import OpenFiles, Span, advise_sequential, advise_soon, open_to_read, read_into
from agentmerge.tensors import DTYPES, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SINGLE = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".gguf")
NOT_WEIGHTS = ("training_args.*", "optimizer*", "scheduler*", "rng_state*")  # left by a trainer
HUB_ID = re.compile(r"(?:hf://)?(?P<id>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")
UNPACK = "GGUF weights are quantised or laid out anew: merge the safetensors checkpoint that they were made from."
UNFINISHED = "Finish the download (`hf download` fetches only what is missing), or correct the index."


class Checkpoint(Protocol):
    """Named tensors that can be read block by block, wherever they are stored."""

    @property
    def source(self) -> str:
        """What the user wrote: a path or an id."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor by name, ordered by shard file name, then by data offset."""

    def read(self, block: Block, out: Array | None = None) -> Array:
        """The block's elements, [n] in the stored dtype of this checkpoint's tensor of that name."""


class Opened(Checkpoint, Protocol):
    """A checkpoint with files of its own, or a view of one."""

    @property
    def folder(self) -> Path:
        """Where its files lie."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Its weight files."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Of the files' headers."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about it, but no error."""

    def span(self, block: Block) -> Span | None:
        """Where the block lies in a file as `read` gives it; None where it has to be put together, or is not there."""

    def expect(self, block: Block) -> None:
        """Let the OS fetch what a read of this block needs."""

    def identity(self) -> dict[str, Any]:
        """What tells these weights from others, as JSON data."""

    def restat(self) -> None:
        """Raise SourceError when a file changed since it was opened."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One weight file and what tells whether it is still the same."""

    name: str
    """Relative to the checkpoint's folder."""
    size: int
    """Bytes."""
    mtime_ns: int
    header_sha256: str


class FolderCheckpoint:
    """The safetensors files of one folder, or one such file. Reads may come from many threads."""

    def __init__(self, source: str, folder: Path, choice: Choice) -> None:
        self.source = source
        self.folder = folder
        headers = {name: _opened(folder, name) for name in choice.files}
        self.files = tuple(file for file, _ in headers.values())
        self.metadata = {key: text for _, header in headers.values() for key, text in header.metadata.items()}
        self._places, ignored = _places(folder, choice, headers)
        self.specs: Mapping[str, TensorSpec] = {name: place.spec for name, place in self._places.items()}
        self.warnings = (*choice.warnings, *ignored)
        self._files = OpenFiles(self._reopen)

    def read(self, block: Block, out: Array | None = None) -> Array:
        """Read one block by the name of its tensor; its dtype is this checkpoint's, whatever the block says.

        Args:
            block: flat elements [start, stop).
            out: filled and returned when given: [block.elements], stored dtype, contiguous.

        Raises:
            SourceError: no such tensor, or its file was truncated, changed or can't be read any more.
            ValueError: the block ends beyond the tensor, or `out` does not fit it.
        """
        name = block.tensor.name
        place = self._places.get(name)
        if place is None:
            raise SourceError(f"{self.source}: no tensor {shown(name)}.{did_you_mean(name, self.specs)}")
        dtype = DTYPES[place.spec.dtype]
        if not 0 <= block.start <= block.stop <= place.spec.elements:
            raise ValueError(f"{name}: elements [{block.start}, {block.stop}) of {place.spec.elements}")
        if out is None:
            out = np.empty(block.elements, dtype)
        elif out.dtype != dtype or out.shape != (block.elements,):
            raise ValueError(f"{name}: out is {out.dtype} {out.shape}, expected {dtype} ({block.elements},)")
        where = f"{self.folder / place.file}: tensor {shown(name)}"
        with naming(where), self._files.borrow(place.file) as fd:
            read_into(fd, out, place.offset + block.start * dtype.itemsize)
        return out

    def span(self, block: Block) -> Span | None:
        """The block's bytes in their file, which stays open until the span is closed; None for no such tensor.

        Args:
            block: as for `read`.

        Raises:
            SourceError: the file changed or can't be opened any more.
        """
        place = self._places.get(block.tensor.name)
        if place is None or block.stop > place.spec.elements:
            return None
        itemsize = DTYPES[place.spec.dtype].itemsize
        with naming(str(self.folder / place.file)):
            fd = self._files.take(place.file)
        give = partial(self._files.give, place.file)
        return Span(fd, place.offset + block.start * itemsize, block.elements * itemsize, give)

    def expect(self, block: Block) -> None:
        """Say that this block will be read soon, so that the OS may fetch it; a tensor that is not here is passed over.

        Args:
            block: as for `read`.
        """
        span = self.span(block)
        if span is not None:
            advise_soon(span.fd, span.offset, span.nbytes)
            span.close()

    def identity(self) -> dict[str, Any]:
        """What tells these weights from others, as JSON: each file's name, size, mtime_ns and header hash."""
        return {"files": [asdict(file) for file in self.files]}

    def restat(self) -> None:
        """Raise SourceError when a file is gone, or has another size or time than when it was opened."""
        for file in self.files:
            path = self.folder / file.name
            with naming(str(path)):
                _refuse_changed(path, file, path.stat())

    def close(self) -> None:
        """Close the files; reading is an error from now on."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reopen(self, name: str) -> int:
        file = next(file for file in self.files if file.name == name)
        fd = open_to_read(self.folder / name)
        try:
            _refuse_changed(self.folder / name, file, os.fstat(fd))
            advise_sequential(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd


def open_checkpoint(source: str | Path) -> FolderCheckpoint:
    """Open a folder of safetensors files, or one such file: read and check every header, but no data.

    Raises:
        SourceNotFoundError: the path, or a file that the index names, is not there.
        SourceError: what is there is not one complete safetensors checkpoint.
    """
    text, path = str(source), Path(source)
    with naming(text):
        if not text or not path.exists():
            raise SourceNotFoundError(_not_found(text))
        if path.is_dir():
            return FolderCheckpoint(text, path, _choose(path))
        return FolderCheckpoint(text, path.parent, Choice((path.name,)))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a folder make up the checkpoint."""

    files: tuple[str, ...]
    """Sorted, relative to the folder."""
    owners: Mapping[str, str] | None = None
    """The file of each tensor by the index; None without an index."""
    warnings: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    offset: int  # bytes from the file's start
    spec: TensorSpec


def _not_found(source: str) -> str:
    hub = HUB_ID.fullmatch(source)
    if not hub:
        return f"{source!r}: no such folder or file, expected a checkpoint. Check the path."
    revision = f" --revision {hub['revision']}" if hub["revision"] else ""
    command = f"hf download {hub['id']}{revision} --local-dir DIR"
    return f"{source}: no such folder. If it is an id on the Hugging Face hub, download it first: {command}"


def _choose(folder: Path) -> Choice:
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    weights = [name for name in names if name.endswith(".safetensors")]
    owners = _owners(folder) if INDEX in names else None
    files = tuple(sorted(set(owners.values()))) if owners else (_unindexed(folder, names, weights),)
    if owners and SINGLE in names and files != (SINGLE,):
        raise SourceError(
            f"{folder}: found two checkpoints, {SINGLE} and the files of {INDEX}, expected one. "
            "Remove the one that you do not mean, or give the path of the file itself."
        )
    stray = [name for name in weights if name not in files]
    torch = [name for name in names if fnmatchcase(name, "pytorch_model*.bin")]
    warnings = [f"{folder}: not part of the checkpoint, ignored: {shortened(stray)}"] if stray else []
    warnings += [f"{folder}: also has PyTorch files, ignored: {shortened(torch)}"] if torch else []
    return Choice(files, owners, warnings=tuple(warnings))


def _unindexed(folder: Path, names: list[str], weights: list[str]) -> str:
    if SINGLE in weights:
        return SINGLE
    if not weights:
        _refuse_other_formats(folder, names)
    if len(weights) > 1:
        todo = f"Add {INDEX}, or give the path of the file that you mean."
        found = f"{len(weights)} .safetensors files and no {INDEX}: {shortened(weights)}"
        raise SourceError(f"{folder}: found {found}, expected one checkpoint. {todo}")
    if weights[0] == ADAPTER and "adapter_config.json" in names:
        todo = "Merge it into its base first, for example with PEFT's merge_and_unload and save_pretrained."
        raise SourceError(f"{folder}: found a LoRA adapter ({ADAPTER}), which is not supported yet. {todo}")
    shard = re.search(r"-\d+-of-(\d+)\.safetensors$", weights[0])
    if shard and int(shard[1]) > 1:
        found = f"{weights[0]}, one of {int(shard[1])} shards, and no {INDEX}"
        raise SourceError(f"{folder}: found {found}, expected all of them. {UNFINISHED}")
    return weights[0]


def _refuse_other_formats(folder: Path, names: list[str]) -> NoReturn:
    others = [name for name in names if name.endswith(OTHER_FORMATS)]
    others = [name for name in others if not any(fnmatchcase(name, pattern) for pattern in NOT_WEIGHTS)]
    if others:
        gguf = all(name.endswith(".gguf") for name in others)
        raise SourceError(
            f"{folder}: found only {shortened(others)}, expected safetensors. {UNPACK if gguf else CONVERT}"
        )
    found = shortened(names) or "an empty folder"
    raise SourceError(f"{folder}: found {found}, expected a .safetensors file. Check the path.")


def _owners(folder: Path) -> dict[str, str]:
    """The index: the shard file of every tensor, refused unless each is a file inside the folder."""
    path = folder / INDEX
    with naming(str(path)):
        if path.stat().st_size > LIMIT:
            raise SourceError(f"{path}: {path.stat().st_size} bytes, expected at most {LIMIT}. {AGAIN}")
        weight_map = parse_json(path.read_bytes(), str(path)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        expected = "expected a file name for every tensor"
        raise SourceError(f"{path}: weight_map is {shown(weight_map)}, {expected}. {AGAIN}")
    owners = {name: _inside(file, f"{path}: tensor {shown(name)}") for name, file in weight_map.items()}
    missing = sorted(file for file in set(owners.values()) if not (folder / file).exists())
    if missing:
        found = f"{len(missing)} of its {len(set(owners.values()))} files are not there"
        raise SourceNotFoundError(f"{path}: {found}: {shortened(missing)}. {UNFINISHED}")
    return owners


def _inside(file: object, place: str) -> str:
    path = PurePosixPath(file if isinstance(file, str) else "")
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise SourceError(f"{place} is in {shown(file)}, expected a file inside the folder. {AGAIN}")
    return str(path)


def _opened(folder: Path, name: str) -> tuple[SourceFile, Header]:
    path = folder / name
    with naming(str(path)):
        fd = open_to_read(path)
        try:
            header, state = header_of(fd, path), os.fstat(fd)
        finally:
            os.close(fd)
    return SourceFile(name, state.st_size, state.st_mtime_ns, header.sha256), header


def _places(
    folder: Path, choice: Choice, headers: Mapping[str, tuple[SourceFile, Header]]
) -> tuple[dict[str, _Place], list[str]]:
    places: dict[str, _Place] = {}
    warnings: list[str] = []
    for file, (_, header) in headers.items():
        mine = {name for name in header.tensors if choice.owners is None or choice.owners.get(name) == file}
        for name, entry in header.tensors.items():
            if name in mine:
                places[name] = _Place(file, header.data_start + entry.begin, entry.spec)
        warnings += _ignored(folder / file, [name for name in header.tensors if name not in mine], choice)
    for name, file in (choice.owners or {}).items():
        if name not in places:
            holders = [other for other, (_, header) in headers.items() if name in header.tensors]
            found = f"found it in {shortened(holders)}" if holders else "no shard has it"
            expected = f"{folder / INDEX}: tensor {shown(name)} should be in {file}"
            raise SourceError(f"{expected}, which does not hold it; {found}. {UNFINISHED}")
    return places, warnings


def _ignored(path: Path, names: list[str], choice: Choice) -> Iterator[str]:
    owners = choice.owners or {}
    unlisted = [name for name in names if name not in owners]
    elsewhere = [name for name in names if name in owners]
    if unlisted:
        yield f"{path}: not in the index, ignored: {shortened(unlisted)}"
    if elsewhere:
        yield f"{path}: the index takes them from another shard, ignored here: {shortened(elsewhere)}"


def _refuse_changed(path: Path, file: SourceFile, now: os.stat_result) -> None:
    if (now.st_size, now.st_mtime_ns) == (file.size, file.mtime_ns):
        return
    found = f"{now.st_size} bytes of time {now.st_mtime_ns} ns"
    expected = f"{file.size} bytes of time {file.mtime_ns} ns"
    raise SourceError(f"{path}: changed while in use: found {found}, expected {expected}. Start again.")
