"""Whether a folder is a finished merge that others can be given: its files, its record and its card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import MergeError, OutputError, Problem, Where, shortened
from agentmerge.files.journal import JOURNAL
from agentmerge.record import RECORD, MergeRecord
from agentmerge.sidefiles.card import card_metadata, hub_takes
from agentmerge.sources.hub import hub_id
from agentmerge.sources.opening import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

CARD = "README.md"
LICENCES = "Its names: https://huggingface.co/docs/hub/repositories-licenses"


@dataclass(frozen=True)
class Ready:
    """A finished merge."""

    folder: Path
    record: MergeRecord
    files: Mapping[str, Path]
    """What is uploaded, by its path in the repository."""
    base_models: tuple[str, ...]
    """The models that it was merged from, as its card says."""
    licence: str

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(path.stat().st_size for path in self.files.values())


def ready(folder: Path) -> Ready:
    """A folder that `merge` wrote and that can be pushed as it is.

    Raises:
        SurveyError: `merge` did not write it.
        OutputError: it is unfinished, its weights are not those of its record, or its card lacks something; all that
            is found of the card.
    """
    if (folder / JOURNAL).exists():
        raise _refused(folder, "an unfinished merge", "Run the same merge again: it goes on.")
    record = MergeRecord.load(folder)
    _check_weights(folder, record)
    problems = list(_card_problems(folder, record))
    if problems:
        raise OutputError(*problems)
    card = card_metadata(folder)
    files = dict(_files(folder))
    return Ready(folder, record, files, tuple(_texts(card.get("base_model"))), str(card["license"]))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file but hidden ones, and those in hidden folders."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), path


def _check_weights(folder: Path, record: MergeRecord) -> None:
    """Raise OutputError unless the weights are there, whole, and as many bytes as were written."""
    todo = "Merge again."
    try:
        with opened(None, str(folder)) as source:
            sizes = [file.size for file in source.identity.files]
    except MergeError as error:
        raise _refused(folder, f"no whole checkpoint: {error.problems[0].found}", todo) from error
    written = record.output
    if (len(sizes), sum(sizes)) != (written.shards, written.bytes):
        found = f"{sum(sizes):,} bytes of weights in {len(sizes)} files, not what its {RECORD} says"
        raise _refused(folder, found, todo, f"{written.bytes:,} bytes in {written.shards}")


def _card_problems(folder: Path, record: MergeRecord) -> Iterator[Problem]:
    """What is missing in the model card."""
    path, card = folder / CARD, card_metadata(folder)
    where = Where(path=str(path))
    if not path.is_file():
        yield Problem(f"{path}: no model card", todo="Merge again, which writes one.", where=where)
        return
    if not card:
        yield Problem(f"{path}: no metadata that can be read", "a block of YAML between two lines of ---", where=where)
        return
    yield from lacking(card, models_of(record.sources, record.recipe.get("agents", ())), str(path))


def lacking(card: Mapping[str, Any], merged: Sequence[str], path: str) -> Iterator[Problem]:
    """What is missing in the metadata of a model card.

    Args:
        card: the metadata.
        merged: the models on the hub that were merged, or will be.
        path: what the card is called.
    """
    where = Where(path=path)
    told = _texts(card.get("base_model"))
    if not told:
        found = f"{path}: base_model is missing, and no source of this merge was a model on the hub"
        todo = "Add what it was merged from: base_model: [ORG/BASE, ...] and base_model_relation: merge"
        yield Problem(found, "the models that it was merged from", todo, where)
    elif left := [name for name in merged if name not in told]:
        yield Problem(f"{path}: base_model lacks {shortened(left)}", "every model that was merged", where=where)
    elif bad := [name for name in told if not hub_takes(name) or "/" not in name]:
        yield Problem(f"{path}: base_model has {shortened(bad)}", "ids on the hub: OWNER/MODEL", where=where)
    if not isinstance(card.get("license"), str) or not card["license"].strip():
        found = f"{path}: license is missing, as the base's own card has none"
        yield Problem(found, todo=f"Add the licence of what was merged: license: apache-2.0. {LICENCES}", where=where)
    elif card["license"] == "other" and not card.get("license_name"):
        yield Problem(f"{path}: license is other, without a license_name", todo="Add its name and link.", where=where)


def models_of(sources: Mapping[str, Mapping[str, Any]], agents: Iterable[str]) -> list[str]:
    """The models on the hub that are merged: those whose commit is known, and nothing that is read beside them."""
    models = {"base", "onto", *agents}
    known = [source for name, source in sources.items() if name in models and "commit" in source]
    found = [hub_id(source["source"]) for source in known]
    return list(dict.fromkeys(model.name for model in found if model is not None))


def _texts(value: Any) -> list[str]:
    """One text, or a list of them."""
    found = value if isinstance(value, list) else [value]
    return [text for text in found if isinstance(text, str) and text]


def _refused(folder: Path, found: str, todo: str, expected: str = "") -> OutputError:
    return OutputError(f"{folder}: {found}", expected=expected, todo=todo, where=Where(path=str(folder)))
