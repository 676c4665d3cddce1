"""Which weight files of a folder make up the checkpoint: the index's, or the only one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agentmerge.errors import Note, SourceError, SourceNotFoundError, Where, shortened
from agentmerge.files.documents import abbreviated, dangling, leads_nowhere, strict_json, without_bom
from agentmerge.files.header import LIMIT
from agentmerge.files.layout import INDEX
from agentmerge.files.os_errors import AGAIN, source_errors
from agentmerge.sources.trainers import UNLORA, adapters_of, parts_among, unfinished

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SINGLE = "model.safetensors"
TORCH_SINGLE, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
UNFINISHED = (
    "Finish the download (`hf download` fetches only what is missing), or save the checkpoint again. Do not take the "
    "tensors out of the index: what was trained in them would be lost."
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a folder make up the checkpoint."""

    files: tuple[str, ...]
    """Sorted, relative to the folder."""
    owners: Mapping[str, str] | None = None
    """The file of each tensor by the index; None without an index."""
    notes: tuple[Note, ...] = ()
    index: str = INDEX
    """The file of that index."""


def choose(folder: Path, names: Sequence[str]) -> Choice:
    """The files of a folder that has an index or safetensors files.

    Args:
        folder: to look into.
        names: of everything in it, sorted, hidden entries aside.

    Raises:
        SourceError: they are not one checkpoint, or not all of it.
    """
    where = Where(path=str(folder))
    adapters = adapters_of(names)
    weights = [name for name in names if name.endswith(".safetensors") and name not in adapters]
    owners = _owners(folder / INDEX) if INDEX in names else None
    files = tuple(sorted(set(owners.values()))) if owners else (_unindexed(folder, weights, adapters),)
    if owners and SINGLE in names and files != (SINGLE,):
        raise SourceError(
            f"{folder}: found two checkpoints, {SINGLE} and the files of {INDEX}",
            expected="one",
            todo="Remove the one that you do not mean from the folder, or give the path of the file itself.",
            where=where,
        )
    stray = [name for name in weights if name not in files]
    torch = [name for name in names if fnmatchcase(name, "pytorch_model*.bin")]
    notes = [f"{folder}: not part of the checkpoint, ignored: {shortened(stray)}"] if stray else []
    notes += [f"{folder}: also has PyTorch files, ignored: {shortened(torch)}"] if torch else []
    if parts := parts_among(names):
        notes.append(f"{folder}: also has the parts that a trainer left, ignored: {shortened(parts)}")
    if adapters:
        notes.append(
            f"{folder}: also has a LoRA adapter, ignored: {shortened(adapters)}; if the training is in it, merge it "
            "into the weights first (PEFT's merge_and_unload)"
        )
    return Choice(files, owners, tuple(Note(note, where=where) for note in notes))


def choose_torch(folder: Path, names: Sequence[str], files: Sequence[str]) -> Choice:
    """The files of torch.save that make up the checkpoint of a folder: the index's, or the only one.

    Args:
        folder: to look into.
        names: of everything in it.
        files: those that may be weights.

    Raises:
        SourceError: they are not one checkpoint, or not all of it.
    """
    if TORCH_INDEX in names:
        owners = _owners(folder / TORCH_INDEX)
        return Choice(tuple(sorted(set(owners.values()))), owners, index=TORCH_INDEX)
    chosen = [name for name in files if name == TORCH_SINGLE] or list(files)
    where = Where(path=str(folder))
    found = f"{folder}: found {shortened(chosen)} and no {TORCH_INDEX}"
    if len(chosen) > 1:
        todo = "Give the path of the one that is the model, or put the index of its shards there."
        raise SourceError(found, expected="one checkpoint", todo=todo, where=where)
    if re.search(r"-\d+-of-0*([2-9]|[1-9]\d+)\.\w+$", chosen[0]):
        raise SourceError(found, expected="all of its shards", todo=UNFINISHED, where=where)
    return Choice((chosen[0],))


def refuse_other(path: Path, owners: Mapping[str, str], held: Mapping[str, Collection[str]]) -> None:
    """See that an index and its files hold the same tensors.

    Args:
        path: of the index.
        owners: the file of each tensor by the index.
        held: the tensors of each of its files.

    Raises:
        SourceError: a file does not hold what the index says, or the index does not list what a file holds.
    """
    for name, file in owners.items():
        if name not in held[file]:
            raise _missing(path, name, file, [other for other, names in held.items() if name in names])
    for file, names in held.items():
        if unlisted := [name for name in names if name not in owners]:
            raise _unlisted(path, file, unlisted)


def _missing(path: Path, name: str, file: str, holders: Sequence[str]) -> SourceError:
    found = f"found it in {shortened(holders)}" if holders else "no shard has it"
    return SourceError(
        f"{path}: tensor {abbreviated(name)} should be in {file}, which does not hold it; {found}",
        todo=UNFINISHED,
        where=Where(tensor=name, path=str(path)),
    )


def _unlisted(path: Path, file: str, names: Sequence[str]) -> SourceError:
    """Loaders go through the files, so that a tensor which the index leaves out is part of the model all the same."""
    first = abbreviated(names[0])
    found = f"tensor {first} is" if len(names) == 1 else f"{len(names)} tensors are"
    more = "" if len(names) == 1 else f": {shortened(names)}"
    return SourceError(
        f"{path}: {found} in {file} and not in the index{more};",
        expected="every tensor of its files in weight_map",
        todo=f"Repair the index: put {first} and its file into weight_map, or load the checkpoint with transformers, "
        "which takes it from the file, and save it again. Do not count it as unchanged or leave it out: what was "
        "trained in it would be lost.",
        where=Where(tensor=names[0], path=str(path)),
    )


def _unindexed(folder: Path, weights: list[str], adapters: list[str]) -> str:
    if SINGLE in weights:
        return SINGLE
    where = Where(path=str(folder))
    if (parts := unfinished(folder, weights)) is not None:
        raise SourceError(f"{folder}: found {parts.found}", expected="whole tensors", todo=parts.todo, where=where)
    if len(weights) > 1 and adapters:
        raise SourceError(
            f"{folder}: found a LoRA adapter ({shortened(adapters)}) beside {len(weights)} .safetensors files and no "
            f"{INDEX}: {shortened(weights)}",
            expected="one checkpoint",
            todo=f"{UNLORA} Without the adapter: put {INDEX} there.",
            where=where,
        )
    if len(weights) > 1:
        raise SourceError(
            f"{folder}: found {len(weights)} .safetensors files and no {INDEX}: {shortened(weights)}",
            expected="one checkpoint",
            todo=f"Add {INDEX} if they are one model's shards; if each is a model, give the path of the one that you "
            "mean.",
            where=where,
        )
    shard = re.search(r"-\d+-of-(\d+)\.safetensors$", weights[0])
    if shard and int(shard[1]) > 1:
        found = f"{folder}: found {weights[0]}, one of {int(shard[1])} shards, and no {INDEX}"
        raise SourceError(found, expected="all of them", todo=UNFINISHED, where=where)
    return weights[0]


def _owners(path: Path) -> dict[str, str]:
    """The index: the shard file of every tensor, refused unless each is a file inside the folder."""
    where = Where(path=str(path))
    with source_errors(str(path)):
        size = path.stat().st_size
        if size > LIMIT:
            raise SourceError(f"{path}: {size} bytes", expected=f"at most {LIMIT}", todo=AGAIN, where=where)
        weight_map = strict_json(without_bom(path.read_bytes()), str(path), where).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        found = f"{path}: weight_map is {abbreviated(weight_map)}"
        raise SourceError(found, expected="a file name for every tensor", todo=AGAIN, where=where)
    owners = {name: _inside(file, Where(tensor=name, path=str(path))) for name, file in weight_map.items()}
    files = sorted(set(owners.values()))
    missing = [file for file in files if not (path.parent / file).exists()]
    if links := [path.parent / file for file in missing if leads_nowhere(path.parent / file)]:
        raise SourceNotFoundError(*(problem for link in links for problem in dangling(link).problems))
    if missing:
        found = f"{path}: {len(missing)} of its {len(files)} files are not there: {shortened(missing)}"
        raise SourceNotFoundError(found, todo=UNFINISHED, where=where)
    return owners


def _inside(file: object, where: Where) -> str:
    path = PurePosixPath(file if isinstance(file, str) else "")
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in str(path):
        found = f"{where.path}: tensor {abbreviated(where.tensor)} is in {abbreviated(file)}"
        raise SourceError(found, expected="a file inside the folder", todo=AGAIN, where=where)
    return str(path)
