"""Sparse deltas opened as an agent: which files are steps, in which order, and what they lie over."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import MergeError, Note, SourceError, Where, shortened
from agentmerge.files.documents import abbreviated, json_or_nothing
from agentmerge.files.header import Header, header_of
from agentmerge.files.layout import INDEX
from agentmerge.files.positional import ShortRead, open_to_read
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.sources.called import is_another
from agentmerge.sources.delta import INDICES, VALUES, Changes, DeltaWeights
from agentmerge.sources.embeddings import embedding_in, usual_head
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.index import Choice, choose
from agentmerge.sources.language import language_sections, setting
from agentmerge.sources.placed import refuse_fp8
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.sources.source import Folder, Identity, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.errors import Role
    from agentmerge.sources.source import Weights
    from agentmerge.tensors import TensorSpec

VERSION = "model_version"
BEFORE = ("base_version", "base_step")
"""Metadata: the version of the model after a step, and the one that it lies over, where a writer says it."""
BASE_NAMES = ("base_model", "base_model_name_or_path", "base")
"""Metadata: the model that it was made from."""
FETCH = (
    "Fetch every step since the last whole checkpoint into one folder, with that checkpoint or as deltas of the base."
)


@dataclass(frozen=True)
class Step:
    """One file of changes."""

    path: Path
    weights: FolderWeights
    version: int | None
    before: int | None
    """The version that it lies over; None where it does not say."""


def delta_files(folder: Path, names: Sequence[str]) -> list[str]:
    """Those of some safetensors files that are deltas, by their headers.

    Args:
        folder: where they lie.
        names: of the files; the shards of an index are none.
    """
    return [name for name in names if name.endswith(".safetensors") and _is_delta(folder / name)]


def _is_delta(path: Path) -> bool:
    try:
        fd = open_to_read(path)
    except OSError:
        return False
    try:
        header = header_of(fd, path)
    except (MergeError, OSError, ShortRead):
        return False  # whoever opens it tells what is wrong
    finally:
        os.close(fd)
    return _looks_sparse(header)


def _looks_sparse(header: Header) -> bool:
    if header.metadata.get("sparse", "").lower() in ("true", "1", "yes"):
        return True
    names = set(header.tensors)
    stems = {name.removesuffix(INDICES) for name in names if name.endswith(INDICES)}
    return bool(stems) and names == {stem + end for stem in stems for end in (INDICES, VALUES)}


@contextmanager
def open_deltas(
    role: Role | None, text: str, folder: Folder, names: Sequence[str], files: Sequence[str], base: Source | None
) -> Iterator[Source]:
    """A checkpoint under its deltas: the folder's own, else the base.

    Args:
        role: who it is.
        text: what the user wrote.
        folder: where the files lie.
        names: of everything that may be read there.
        files: those of the deltas.
        base: the recipe's base.

    Raises:
        SourceError: there is nothing that they lie over, a step is missing, or one does not fit.
    """
    others = [name for name in names if name not in files]
    torch = [name for name in others if name.startswith("pytorch_model") and name.endswith(SUFFIXES)]
    whole = any(name.endswith(".safetensors") for name in others) or INDEX in others
    if torch and not whole:
        todo = "Give the deltas in a folder of their own, over a base, or beside safetensors."
        raise _wrong(folder.path, f"found deltas ({shortened(files)}) beside {shortened(torch)}", "safetensors", todo)
    with ExitStack() as stack:
        steps = [_step(text, folder.path / name, stack) for name in files]
        anchor = _open(text, folder.path, choose(folder.path, others), stack) if whole else None
        if anchor is None and base is None:
            todo = "Deltas are an agent's, over the recipe's base, or lie beside a whole checkpoint."
            raise _wrong(folder.path, f"found only deltas ({shortened(files)})", "a whole checkpoint", todo)
        under: Weights = anchor if anchor is not None else _weights_of(base)
        metadata = anchor.metadata if anchor is not None else base.metadata if base is not None else {}
        ordered = _ordered(steps, metadata, folder.path)
        if anchor is None or not (folder.path / "config.json").exists():
            refuse_fp8(under.specs, folder.path)
        changes = _matched(ordered, under)
        home = folder.path if anchor is not None or base is None else base.folder.path
        opened = [*([anchor] if anchor is not None else []), *(step.weights for step in ordered)]
        yield Source(
            role=role,
            text=text,
            weights=DeltaWeights(text, under, _read(under.specs, changes, home), changes),
            folder=folder,
            identity=Identity(folder.path, tuple(file for each in opened for file in each.identity.files)),
            metadata=ordered[-1].weights.metadata,
            notes=tuple(_notes(ordered, None if anchor else base, Where(role, text, path=str(folder.path)))),
        )


def _step(text: str, path: Path, stack: ExitStack) -> Step:
    weights = _open(text, path.parent, Choice((path.name,)), stack)
    before = next((weights.metadata[key] for key in BEFORE if key in weights.metadata), None)
    numbers = [_number(found, path) for found in (weights.metadata.get(VERSION), before)]
    return Step(path, weights, numbers[0], numbers[1])


def _open(text: str, folder: Path, choice: Choice, stack: ExitStack) -> FolderWeights:
    weights = FolderWeights(text, folder, choice)
    stack.callback(weights.close)
    return weights


def _number(found: str | None, path: Path) -> int | None:
    if found is None:
        return None
    if len(found) < 20 and found.isascii() and found.isdigit():
        return int(found)
    raise _wrong(path, f"its metadata has the version {abbreviated(found)}", "a whole number")


def _weights_of(base: Source | None) -> Weights:
    assert base is not None
    return base.weights


def _ordered(steps: list[Step], metadata: Mapping[str, str], folder: Path) -> list[Step]:
    """The steps in the order in which they were made, where none is missing.

    Args:
        steps: in any order.
        metadata: of what they lie over.
        folder: for messages.
    """
    silent = [step for step in steps if step.version is None]
    if silent and len(steps) > 1:
        names = shortened(step.path.name for step in silent)
        raise _wrong(folder, f"{len(steps)} deltas, of which {names} have no {VERSION} in their metadata", "an order")
    ordered = sorted(steps, key=lambda step: step.version or 0)
    known = metadata.get(VERSION, "")
    last = int(known) if known.isascii() and known.isdigit() and len(known) < 20 else None
    for step in ordered:
        if step.version is None:
            continue
        expected = step.before if step.before is not None else step.version - 1
        first = last is None and expected <= 0  # over a checkpoint that does not say its version
        if not first and expected != last:
            found = f"version {step.version} lies over version {expected}, and what is there is version {last or 0}"
            raise _wrong(step.path, found, "every step in between", FETCH)
        last = step.version
    return ordered


def _matched(steps: Sequence[Step], under: Weights) -> dict[str, list[Changes]]:
    """The changes of every tensor, by the name that the checkpoint has for it."""
    found: dict[str, list[Changes]] = {}
    known = by_common_name(under.specs)
    for step in steps:
        specs = step.weights.specs
        for name in dict.fromkeys(_stem(name, step.path) for name in specs):
            target = name if name in under.specs else known.get(common_name(name))
            if target is None or any(changes.weights is step.weights for changes in found.get(target, ())[-1:]):
                raise _wrong(step.path, f"tensor {abbreviated(name)} is none of the checkpoint's", "its own tensors",
                             "Is it a delta of this checkpoint?", name)  # fmt: skip
            _check(step.path, name, specs, under.specs[target])
            if specs[name + INDICES].elements:
                found.setdefault(target, []).append(Changes(step.weights, name, str(step.path)))
    return found


def _stem(name: str, path: Path) -> str:
    for end in (INDICES, VALUES):
        if name.endswith(end):
            return name.removesuffix(end)
    raise _wrong(path, f"tensor {abbreviated(name)} is neither indices nor values", "NAME.indices and NAME.values",
                 tensor=name)  # fmt: skip


def _check(path: Path, name: str, specs: Mapping[str, TensorSpec], like: TensorSpec) -> None:
    """That a pair is whole and fits its tensor, as far as headers tell."""
    indices, values = specs.get(name + INDICES), specs.get(name + VALUES)
    if indices is None or values is None:
        lacking = INDICES if indices is None else VALUES
        raise _wrong(path, f"tensor {abbreviated(name)} has no {lacking[1:]}", "indices and values", tensor=name)
    if indices.dtype not in ("I32", "I64") or len(indices.shape) != 1 or values.shape != indices.shape:
        text = f"{indices.dtype} {list(indices.shape)} with values {list(values.shape)}"
        raise _wrong(path, f"the indices of {abbreviated(name)} are {text}", "as many values as int32 indices",
                     tensor=indices.name)  # fmt: skip
    if indices.elements > like.elements or (indices.dtype == "I32" and like.elements > 2**31):
        text = f"{indices.elements} {indices.dtype} indices into {like.elements} elements"
        raise _wrong(path, f"tensor {abbreviated(name)} has {text}", "a place for each", tensor=indices.name)
    if values.dtype != like.dtype:
        todo = "Give the checkpoint that the delta was made from, in its own dtype."
        raise _wrong(path, f"the values of {abbreviated(name)} are {values.dtype}", like.dtype, todo, values.name)


def _read(specs: Mapping[str, TensorSpec], changed: Mapping[str, object], home: Path) -> Mapping[str, TensorSpec]:
    """The tensors without a stored head that is tied to an embedding that changed: it follows that embedding."""
    embedding = embedding_in(specs)
    if embedding is None or embedding not in changed:
        return specs
    usual = common_name(usual_head(embedding))
    head = next((name for name in specs if common_name(name) == usual), "")
    sections = language_sections(json_or_nothing(home / "config.json"))
    flags = (setting(section, "tie_word_embeddings") for section in sections)
    tied = next((flag for flag in flags if isinstance(flag, bool)), False)
    return {n: spec for n, spec in specs.items() if n != head} if tied and head and head not in changed else specs


def _notes(steps: Sequence[Step], base: Source | None, where: Where) -> Iterator[Note]:
    """Warnings of what deltas over the recipe's base say of another one, or leave open.

    Args:
        steps: in their order.
        base: None where they lie over a checkpoint beside them.
        where: for the notes.
    """
    if base is None:
        return
    first = steps[0].weights.metadata
    name = next((first[key] for key in BASE_NAMES if key in first), "")
    if name and is_another(name, base):
        found = f"{where.source}: its metadata says that it was made from {name}, and the base is {base.text}"
        yield Note(found, "If that is another model, the result is none that was trained: give its own base.", where)
    elif not name and steps[0].version is None:
        found = f"{where.source}: {steps[0].path.name} does not say what it lies over; names, dtypes and sizes fit"
        yield Note(found, f"See that it was made from this base ({VERSION} in its metadata would tell).", where)


def _wrong(path: Path, found: str, expected: str, todo: str = "Save it again.", tensor: str = "") -> SourceError:
    return SourceError(f"{path}: {found}", expected=expected, todo=todo, where=Where(tensor=tensor, path=str(path)))
