"""A packed delta opened as an agent: that it is whole, that this is its base, and the files beside its weights."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import MergeError, SourceError, Where, shortened
from agentmerge.files.documents import abbreviated, read_bytes
from agentmerge.files.header import header_of
from agentmerge.files.positional import ShortRead, flat_bytes, open_to_read
from agentmerge.sources.beside import is_tokenizer
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.index import Choice
from agentmerge.sources.packed import PackedWeights
from agentmerge.sources.packed_format import (
    FILES,
    KEY,
    LARGEST,
    MANIFEST,
    RANKS,
    VERSION,
    WHOLE_TODO,
    Manifest,
    check_distinct,
)
from agentmerge.sources.sampled import middle
from agentmerge.sources.source import Folder, Source
from agentmerge.tensors import Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.errors import Role
    from agentmerge.sources.packed_format import KeptFile, Packed
    from agentmerge.sources.source import Weights

SAMPLED = 64
"""Tensors of the base that are looked at when a delta is opened over it."""
OWN_BASE = "Give the base that it was packed with, or pack the agent again over this one."


def is_packed(path: Path) -> bool:
    """Whether a file is a packed delta, by its header."""
    try:
        fd = open_to_read(path)
    except OSError:
        return False
    try:
        return KEY in header_of(fd, path).metadata
    except (MergeError, OSError, ShortRead):
        return False  # whoever opens it tells what is wrong
    finally:
        os.close(fd)


def told_from(path: Path) -> int | None:
    """Where in a packed delta begins what tells the rest of it, up to its end; None of any other file."""
    if not is_packed(path):
        return None
    fd = open_to_read(path)
    try:
        header = header_of(fd, path)
    finally:
        os.close(fd)
    return header.data_start + header.tensors[FILES].begin if FILES in header.tensors else None


@contextmanager
def open_packed(
    role: Role | None, text: str, path: Path, base: Source | None, *, sampled: bool = True
) -> Iterator[Source]:
    """The agent of a packed delta; its folder is one of its own, with the files beside its weights, while it is open.

    Args:
        role: who it is.
        text: what the user wrote.
        path: of the file.
        base: what it lies over.
        sampled: whether the base's numbers are compared; False where they are not here yet.

    Raises:
        SourceError: it is damaged, there is no base, or this is not its base.
    """
    if base is None:
        todo = "A packed delta is an agent's, over the recipe's base; `agentmerge apply` makes a checkpoint of it."
        raise _wrong(path, "a packed delta", "a whole checkpoint", todo)
    with ExitStack() as stack:
        file = FolderWeights(text, path.parent, Choice((path.name,)))
        stack.callback(file.close)
        manifest = manifest_of(file, path)
        check_base(manifest, base, path, sampled=sampled)
        home = Folder(Path(stack.enter_context(TemporaryDirectory(prefix="agentmerge-"))), whole=True)
        unpack_files(manifest, file, base.folder.path, home.path, path)
        yield Source(
            role=role,
            text=text,
            weights=PackedWeights(text, file, manifest, base.weights, str(path)),
            folder=home,
            identity=file.identity,
            metadata=file.metadata,
            calls=home.called(text),
        )


def manifest_of(file: FolderWeights, path: Path) -> Manifest:
    """The manifest of a delta, which its entries agree with.

    Args:
        file: its entries.
        path: for messages.

    Raises:
        SourceError: they do not.
    """
    if file.metadata.get(KEY) != str(VERSION):
        found = f"a packed delta of version {abbreviated(file.metadata.get(KEY))}"
        raise _wrong(path, found, str(VERSION), "Update agentmerge, or pack it again.")
    spec = file.specs.get(MANIFEST)
    if spec is None or spec.dtype != "U8" or spec.nbytes > LARGEST:
        raise _wrong(path, f"a packed delta whose {MANIFEST} is {spec and [spec.dtype, *spec.shape]}", "bytes")
    manifest = Manifest.decode(_bytes(file, spec, 0, spec.elements), path)
    expected = {entry.name: entry for tensor in manifest.tensors for entry in tensor.entries}
    ends = [(RANKS, "I64", sum(tensor.ranks for tensor in manifest.tensors)), (FILES, "U8", manifest.kept_bytes)]
    expected |= {name: TensorSpec(name, dtype, (size,)) for name, dtype, size in ends} | {MANIFEST: spec}
    wrong = [name for name in expected.keys() | file.specs.keys() if expected.get(name) != file.specs.get(name)]
    if wrong:
        raise _wrong(path, f"its manifest does not fit its entries {shortened(sorted(wrong))}", "one for each")
    try:
        check_distinct([*(file.name for file in manifest.weights), *(file.name for file in manifest.files)])
    except ValueError as problem:
        raise _wrong(path, f"its manifest has {problem}", "different ones") from None
    return manifest


def check_base(manifest: Manifest, base: Source, path: Path, *, sampled: bool) -> None:
    """Raise SourceError where a base is not the one that a delta was packed with, as far as header and sample tell."""
    lacking = [tensor for tensor in manifest.tensors if tensor.base is not None and not _fits(tensor, base)]
    if lacking:
        names = shortened(abbreviated(tensor.base) for tensor in lacking)
        raise _wrong(path, f"lies over another base than {base.text}, which has no such {names}", "", OWN_BASE)
    if sampled and sample_of(manifest.tensors, base.weights) != manifest.sample:
        found = f"lies over another base than {base.text}: the numbers differ"
        raise _wrong(path, found, f"the numbers of {manifest.base}", OWN_BASE)


def _fits(tensor: Packed, base: Source) -> bool:
    under = base.specs.get(tensor.base or "")
    return under is not None and (under.dtype, under.shape) == (tensor.dtype, tensor.shape)


def sample_of(tensors: Sequence[Packed], base: Weights) -> str:
    """A hash of elements in the middle of tensors that lie apart, in hexadecimal.

    Args:
        tensors: whose bases are looked at, where they have one; in the manifest's order.
        base: its weights.
    """
    names = [tensor.base for tensor in tensors if tensor.base is not None]
    chosen = np.linspace(0, len(names) - 1, min(SAMPLED, len(names))).astype(int) if names else ()
    found = sha256()
    for name in (names[i] for i in chosen):
        spec = base.specs[name]
        piece = base.read(middle(spec))
        found.update(f"{name}\n{spec.dtype}\n{list(spec.shape)}\n".encode() + bytes(flat_bytes(piece)))
    return found.hexdigest()


def unpack_files(manifest: Manifest, file: Weights, base: Path, folder: Path, path: Path) -> None:
    """Put the files beside the agent's weights into a folder; of those that are the base's, what a merge looks at.

    Other files of the base that are not there any more, or have changed, are left out.

    Args:
        manifest: which they are.
        file: the entries of the delta.
        base: the base's folder, from which those come that are alike.
        folder: where they go.
        path: of the delta, for messages.

    Raises:
        SourceError: one is not what it was.
    """
    at = sum(weights.header for weights in manifest.weights)
    for kept in manifest.files:
        if kept.kept:
            data = _bytes(file, file.specs[FILES], at, at + kept.size)
            at += kept.size
        elif (base / kept.name).is_file():
            data = read_bytes(base / kept.name)
        else:
            data = b""
        if sha256(data).hexdigest() != kept.sha256:
            if not kept.kept and not _looked_at(kept.name):
                continue
            raise _other_bytes(kept, base, path)
        (folder / kept.name).parent.mkdir(parents=True, exist_ok=True)
        (folder / kept.name).write_bytes(data)


def headers_of(manifest: Manifest, file: Weights) -> list[bytes]:
    """The headers of the agent's weight files, as they were."""
    ends = np.cumsum([0, *(weights.header for weights in manifest.weights)]).tolist()
    return [_bytes(file, file.specs[FILES], low, high) for low, high in pairwise(ends)]


def _looked_at(name: str) -> bool:
    """Whether a merge looks at a file of an agent; how its weights were divided into files is nothing to it."""
    return is_tokenizer(name) or (name.endswith((".json", ".py")) and not name.endswith(".index.json"))


def _other_bytes(kept: KeptFile, base: Path, path: Path) -> SourceError:
    if kept.kept:
        return _wrong(path, f"its file {kept.name} has other bytes than its manifest says", "")
    found = f"lies over another base than {base}, whose {kept.name} it shares: that is gone, or has other bytes"
    return _wrong(path, found, "the base's files as they were", OWN_BASE)


def _bytes(file: Weights, spec: TensorSpec, start: int, stop: int) -> bytes:
    return bytes(flat_bytes(file.read(Block(spec, start, stop))))


def _wrong(path: Path, found: str, expected: str, todo: str = WHOLE_TODO) -> SourceError:
    return SourceError(f"{path}: {found}", expected=expected, todo=todo, where=Where(path=str(path)))
