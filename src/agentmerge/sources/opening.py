"""Whatever a user names as base, agent or importance, opened as a Source by the first opener that recognises it.

A new kind of source is an entry of OPENERS, or takes the place of one that refuses it today.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from agentmerge.errors import Note, Role, SourceError, SourceNotFoundError, Where, about, calling, shortened
from agentmerge.files.layout import INDEX
from agentmerge.files.os_errors import source_errors
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.sources.adapter_opening import open_adapter
from agentmerge.sources.below import checkpoints_below, trained_parts_below
from agentmerge.sources.delta_opening import open_deltas
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.hub import hub_id
from agentmerge.sources.index import TORCH_INDEX, Choice, choose, choose_torch
from agentmerge.sources.packed_opening import open_packed
from agentmerge.sources.request import Request, deltas_of, is_adapter, packed_of, parts_of, requested, trained_of
from agentmerge.sources.source import Folder, Source
from agentmerge.sources.strided import in_rows
from agentmerge.sources.trained_opening import open_trained
from agentmerge.sources.unread import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.hub import Snapshot
    from agentmerge.sources.trainers import Unfinished


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
    calls = {} if base is None else dict(base.calls)
    if snapshot is not None and snapshot.headers_only:
        calls |= Folder(snapshot.folder, whole=True).called(text)
    with ExitStack() as stack:
        with calling(calls), about(Where(role, text)), source_errors(text):
            request = requested(role, text, base, materialize, snapshot)
            opener = next(opener for opener in OPENERS if opener.recognises(request))
            source = stack.enter_context(opener.open(request))
        found = source if opener.adds or materialize == "base_dtype" else source.noted(_nothing_to_add(source))
        notes = tuple(note.calling(calls) for note in found.notes)
        yield _from_the_hub(replace(found, notes=notes, calls={**calls, **found.calls}), request.snapshot)


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
        if not _unseen(request):
            weights.compare_copies()
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
    return open_deltas(request.role, request.text, folder, request.names, deltas_of(request), request.base)


def _open_trained(request: Request) -> AbstractContextManager[Source]:
    folder = trained_of(request)
    assert folder is not None
    return open_trained(request.role, request.text, folder, request.base, request.materialize)


def _open_packed(request: Request) -> AbstractContextManager[Source]:
    first, *more = packed_of(request)
    others = [name for name in request.weights if name != first.name]
    if more or others or INDEX in (request.names or ()):
        found = f"{request.path}: found {first.name}, a packed delta, beside {shortened(others or [INDEX])}"
        todo = (
            f"Give the file that is meant, for example {first}; what else is the agent's lies in a folder of its own."
        )
        raise SourceError(found, expected="one packed delta alone", todo=todo)
    return open_packed(request.role, request.text, first, request.base, sampled=not _unseen(request.base))


def _refuse_parts(request: Request) -> NoReturn:
    parts = parts_of(request)
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


OPENERS = (
    Opener(lambda request: not request.exists and hub_id(request.text) is not None, _refuse_hub_id),
    Opener(lambda request: not request.exists, _refuse_nothing),
    Opener(is_adapter, _open_adapter, adds=True),
    Opener(lambda request: trained_of(request) is not None, _open_trained, adds=True),
    Opener(lambda request: parts_of(request) is not None, _refuse_parts),
    Opener(lambda request: bool(packed_of(request)), _open_packed),
    Opener(lambda request: bool(deltas_of(request)), _open_deltas),
    Opener(lambda request: request.names is None, _open_file),
    Opener(lambda request: bool(request.weights) or INDEX in (request.names or ()), _open_folder),
    Opener(lambda request: bool(request.holding(SUFFIXES)) or TORCH_INDEX in (request.names or ()), _open_torch),
    Opener(lambda request: bool(request.holding((".gguf",))), _refuse_gguf),
    Opener(lambda request: True, _refuse_folder),
)
"""A path that exists wins over an id on the hub, an index over the files beside it, whole weights over parts."""
