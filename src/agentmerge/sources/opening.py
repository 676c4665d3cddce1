"""Whatever a user names as base, agent or importance, opened as a Source by the first opener that recognises it.

A new kind of source is an entry of OPENERS, or takes the place of one that refuses it today.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NoReturn

from agentmerge.errors import Note, Role, SourceError, SourceNotFoundError, Where, about, shortened
from agentmerge.files.layout import INDEX
from agentmerge.files.os_errors import source_errors
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.sources.adapter_opening import open_adapter
from agentmerge.sources.below import checkpoints_below, trained_parts_below
from agentmerge.sources.delta_opening import delta_files, open_deltas
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.hub import cached_snapshot, hub_id, local_path
from agentmerge.sources.index import TORCH_INDEX, TORCH_SINGLE, Choice, choose, choose_torch
from agentmerge.sources.packed_opening import is_packed, open_packed
from agentmerge.sources.source import Folder, Source
from agentmerge.sources.strided import in_rows
from agentmerge.sources.trained_opening import open_trained
from agentmerge.sources.trainers import Unfinished, adapters_of, parts_at, unfinished
from agentmerge.sources.unread import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.hub import Snapshot

SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")
NOT_WEIGHTS = ("training_args.*", "optimizer*", "scheduler*", "rng_state*")  # left by a trainer


@dataclass(frozen=True, slots=True)
class Request:
    """What shall be opened, and what there is of it."""

    role: Role | None
    text: str
    """What the user wrote."""
    path: Path
    """What that is, read as a path."""
    exists: bool
    names: tuple[str, ...] | None
    """What a folder holds, sorted, hidden entries aside; None for anything else."""
    base: Source | None
    """What an agent's changes are to be added to, for formats that hold nothing else."""
    materialize: Materialize = "base_dtype"
    """How that sum, or what a trainer keeps in a wider dtype, is read."""
    snapshot: Snapshot | None = None
    """Of the hub."""

    @property
    def weights(self) -> list[str]:
        """The safetensors files of a folder."""
        return [name for name in self.names or () if name.endswith(".safetensors")]

    def holding(self, suffixes: tuple[str, ...]) -> list[str]:
        """The files of a folder that end so and may be weights."""
        names = [name for name in self.names or () if name.endswith(suffixes)]
        return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in NOT_WEIGHTS)]


@dataclass(frozen=True, slots=True)
class Opener:
    """One kind of source: asked in the order of OPENERS, the first that recognises it opens it or says why not."""

    recognises: Callable[[Request], bool]
    open: Callable[[Request], AbstractContextManager[Source]]
    adds: bool = False
    """Whether it computes a sum, which `Request.materialize` is about."""


@contextmanager
def opened(
    role: Role | None,
    text: str,
    base: Source | None = None,
    materialize: Materialize = "base_dtype",
    snapshot: Snapshot | None = None,
) -> Iterator[Source]:
    """A source that is open for as long as the `with` lasts: every header is read and checked, but no data.

    Args:
        role: who it is in a merge; None for none.
        text: what the user wrote: a folder, or a file.
        base: given to an agent that holds nothing but its changes.
        materialize: how what an adapter makes of the base, or a trainer keeps in a wider dtype, is read: in the base's
            dtype, or exact.
        snapshot: what lies here of a model on the hub; None where `text` is a path.

    Raises:
        SourceNotFoundError: the path, or a file that the index names, is not there.
        SourceError: what is there is not one complete checkpoint; each problem knows role and text.
    """
    with ExitStack() as stack:
        with about(Where(role, text)), source_errors(text):
            request = _request(role, text, base, materialize, snapshot)
            opener = next(opener for opener in OPENERS if opener.recognises(request))
            source = stack.enter_context(opener.open(request))
        found = source if opener.adds or materialize == "base_dtype" else source.noted(_nothing_to_add(source))
        yield _from_the_hub(found, request.snapshot)


def _nothing_to_add(source: Source) -> Note:
    why = "it is no LoRA adapter and no trainer's parts, and is read as it is stored"
    return Note(f"{source.text}: materialize says nothing of it: {why}", where=source.where)


def _from_the_hub(source: Source, snapshot: Snapshot | None) -> Source:
    """The same source, of which is known what it is on the hub."""
    if snapshot is None:
        return source
    weights = Unread(source.weights, source.text) if snapshot.headers_only else source.weights
    notes = (*source.notes, *(replace(note, where=source.where) for note in snapshot.notes))
    return replace(source, weights=weights, notes=notes, snapshot=snapshot)


def _request(
    role: Role | None, text: str, base: Source | None, materialize: Materialize, snapshot: Snapshot | None
) -> Request:
    path = local_path(text) if snapshot is None else snapshot.folder
    exists = bool(text) and path.exists()
    folder = exists and path.is_dir()
    names = tuple(sorted(e.name for e in path.iterdir() if not e.name.startswith("."))) if folder else None
    return Request(role, text, path, exists, names, base, materialize, snapshot or cached_snapshot(path))


@contextmanager
def _open_folder(request: Request) -> Iterator[Source]:
    folder = Folder(request.path, whole=True)
    with _stored(request, folder, choose(request.path, request.names or ())) as source:
        yield source


@contextmanager
def _open_file(request: Request) -> Iterator[Source]:
    folder = Folder(request.path.parent, whole=False)
    with _stored(request, folder, Choice((request.path.name,))) as source:
        yield source


@contextmanager
def _stored(request: Request, folder: Folder, choice: Choice) -> Iterator[Source]:
    weights = FolderWeights(request.text, folder.path, choice)
    where = Where(request.role, request.text)
    try:
        yield Source(
            role=request.role,
            text=request.text,
            weights=in_rows(weights, request.text),
            folder=folder,
            identity=weights.identity,
            metadata=weights.metadata,
            notes=tuple(replace(note, where=note.where.filled(where)) for note in weights.notes),
        )
    finally:
        weights.close()


def _refuse_hub_id(request: Request) -> NoReturn:
    found = hub_id(request.text)
    revision = f" --revision {found.revision}" if found and found.revision else ""
    command = f"hf download {found.name if found else ''}{revision} --local-dir DIR"
    raise SourceNotFoundError(
        f"{request.text}: no such folder.",
        todo=f"If it is an id on the Hugging Face hub, download it first: {command}",
    )


def _refuse_nothing(request: Request) -> NoReturn:
    found = f"{request.text!r}: no such folder or file"
    raise SourceNotFoundError(found, expected="a checkpoint", todo="Check the path.")


def _open_adapter(request: Request) -> AbstractContextManager[Source]:
    folder = Folder(request.path if request.names is not None else request.path.parent, request.names is not None)
    names = request.names or (request.path.name,)
    here = not (_unseen(request) or _unseen(request.base))
    return open_adapter(request.role, request.text, folder, names, request.base, request.materialize, estimate=here)


def _unseen(source: Request | Source | None) -> bool:
    """Whether it is a model on the hub whose numbers are not here yet."""
    return source is not None and source.snapshot is not None and source.snapshot.headers_only


def _open_deltas(request: Request) -> AbstractContextManager[Source]:
    if request.names is None:
        folder = Folder(request.path.parent, whole=False)
        return open_deltas(request.role, request.text, folder, (), (request.path.name,), request.base)
    folder = Folder(request.path, whole=True)
    return open_deltas(request.role, request.text, folder, request.names, _deltas(request), request.base)


def _open_trained(request: Request) -> AbstractContextManager[Source]:
    folder = _trained(request)
    assert folder is not None
    return open_trained(request.role, request.text, folder, request.base, request.materialize)


def _open_packed(request: Request) -> AbstractContextManager[Source]:
    first, *more = _packed(request)
    others = [name for name in request.weights if name != first.name]
    if more or others or INDEX in (request.names or ()):
        found = f"{request.path}: found {first.name}, a packed delta, beside {shortened(others or [INDEX])}"
        todo = (
            f"Give the file that is meant, for example {first}; what else is the agent's lies in a folder of its own."
        )
        raise SourceError(found, expected="one packed delta alone", todo=todo)
    return open_packed(request.role, request.text, first, request.base, sampled=not _unseen(request.base))


def _refuse_parts(request: Request) -> NoReturn:
    parts = _parts(request)
    assert parts is not None
    raise _unfinished(request.path, parts)


def _refuse_gguf(request: Request) -> NoReturn:
    todo = "GGUF weights are quantised or laid out anew: merge the safetensors checkpoint that they were made from."
    raise SourceError(_only(request.path, request.holding((".gguf",))), expected="safetensors", todo=todo)


@contextmanager
def _open_torch(request: Request) -> Iterator[Source]:
    choice = choose_torch(request.path, request.names or (), request.holding(SUFFIXES))
    with _stored(request, Folder(request.path, whole=True), choice) as source:
        yield source


def _refuse_folder(request: Request) -> NoReturn:
    found = f"{request.path}: found {shortened(request.names or ()) or 'an empty folder'}"
    if below := checkpoints_below(request.path):
        todo = f"Give the path of one of the checkpoints below it: {shortened(map(str, below))}"
        raise SourceError(found, expected="a .safetensors file", todo=todo)
    if (trained := trained_parts_below(request.path)) is not None:
        raise _unfinished(*trained)
    raise SourceError(found, expected="a .safetensors file", todo="Check the path.")


def _unfinished(folder: Path, parts: Unfinished) -> SourceError:
    return SourceError(f"{folder}: found {parts.found}", expected="safetensors of the whole model", todo=parts.todo)


def _only(folder: Path, names: list[str]) -> str:
    return f"{folder}: found only {shortened(names)}"


def _is_adapter(request: Request) -> bool:
    """An adapter's file, or a folder that holds one and no other weights."""
    if request.names is None:
        return bool(adapters_of([request.path.name]))
    adapters = adapters_of(request.names)
    return bool(adapters) and not {*request.weights, *request.holding(SUFFIXES), INDEX}.intersection(request.names) - {
        *adapters
    }


def _deltas(request: Request) -> list[str]:
    """The files that are deltas."""
    if request.names is None:
        return delta_files(request.path.parent, [request.path.name])
    return delta_files(request.path, _single(request))


def _packed(request: Request) -> list[Path]:
    """The files that are packed deltas."""
    if request.names is None:
        return [request.path] if request.exists and is_packed(request.path) else []
    return [path for path in map(request.path.joinpath, _single(request)) if is_packed(path)]


def _single(request: Request) -> list[str]:
    """The safetensors files of a folder that are no shards of its index."""
    sharded = INDEX in (request.names or ())
    return [name for name in request.weights if not (sharded and SHARD.search(name))]


def _trained(request: Request) -> Path | None:
    """Where the parts lie that a trainer left, and no whole weights beside them."""
    whole = {INDEX, TORCH_INDEX, TORCH_SINGLE, *request.weights}
    return None if request.names is None or whole & {*request.names} else parts_at(request.path, request.names)


def _parts(request: Request) -> Unfinished | None:
    """What a trainer left that is no checkpoint yet; None where there are whole weights, or nothing of the kind."""
    if request.names is None:
        return unfinished(request.path.parent, [request.path.name])
    if request.weights or INDEX in request.names:
        return None
    return unfinished(request.path, [path.name for path in request.path.iterdir()])


OPENERS = (
    Opener(lambda request: not request.exists and hub_id(request.text) is not None, _refuse_hub_id),
    Opener(lambda request: not request.exists, _refuse_nothing),
    Opener(_is_adapter, _open_adapter, adds=True),
    Opener(lambda request: _trained(request) is not None, _open_trained, adds=True),
    Opener(lambda request: _parts(request) is not None, _refuse_parts),
    Opener(lambda request: bool(_packed(request)), _open_packed),
    Opener(lambda request: bool(_deltas(request)), _open_deltas),
    Opener(lambda request: request.names is None, _open_file),
    Opener(lambda request: bool(request.weights) or INDEX in (request.names or ()), _open_folder),
    Opener(lambda request: bool(request.holding(SUFFIXES)) or TORCH_INDEX in (request.names or ()), _open_torch),
    Opener(lambda request: bool(request.holding((".gguf",))), _refuse_gguf),
    Opener(lambda request: True, _refuse_folder),
)
"""A path that exists wins over an id on the hub, an index over the files beside it, whole weights over parts."""
