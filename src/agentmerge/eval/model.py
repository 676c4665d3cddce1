"""Whose answers a folder holds: the model's name and weights, the generator, and the merge that made it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentmerge.errors import EvalError, OutputError, SurveyError, Where
from agentmerge.eval.record import ModelFacts
from agentmerge.files.documents import json_or_nothing
from agentmerge.files.os_errors import output_errors
from agentmerge.files.staging import replace_file
from agentmerge.record import RECORD as MERGE_RECORD
from agentmerge.record import MergeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.eval.generators.generator import Generator

MODEL = "model.json"
"""Written before the first answer."""
ANYWHERE = ("server", "version", "too_long")
"""Parts of a generator's identity that may change between two sessions: the same model answers there, and what did not
fit is asked again."""


def model_facts(model: str, generator: Generator) -> ModelFacts:
    """What the record says of a model: a folder, or a name that a server knows."""
    folder = Path(model)
    local = folder.is_dir()
    return ModelFacts(
        name=folder.resolve().name if local else model,
        path=str(folder.resolve()) if local else None,
        weights=weights_identity(folder) if local else None,
        generator=dict(generator.identity),
        merge=merge_facts(folder) if local else None,
    )


def weights_identity(folder: Path) -> str:
    """SHA-256 of the names, sizes and times of a folder's weight files: other weights in its place are told."""
    files = sorted(path for path in folder.iterdir() if path.suffix in {".safetensors", ".gguf", ".bin"})
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def merge_facts(folder: Path) -> dict[str, Any] | None:
    """Method, seconds and agents of a checkpoint that agentmerge merged; None of any other."""
    if not (folder / MERGE_RECORD).is_file():
        return None
    try:
        record = MergeRecord.load(folder)
    except SurveyError:  # of another version: the scores are what counts here
        return None
    return {
        "method": record.recipe.get("method"),
        "seconds": record.timing.fold_seconds + record.timing.map_seconds,
        "agents": record.recipe.get("agents"),
    }


def claim(out: Path, facts: ModelFacts) -> None:
    """Make the folder, or see that its answers are this model's.

    Raises:
        OutputError: they are another's, or it can't be written there.
    """
    path, now = out / MODEL, _who(facts.model_dump(mode="json"))
    then = json_or_nothing(path)
    if then and _who(then) != now:
        found = f"{out}: holds answers of {then.get('name')}: {_difference(_who(then), now)}"
        todo = "Choose another --out, or remove that folder."
        raise OutputError(found, todo=todo, where=Where(path=str(path)))
    with output_errors(out, "Choose another --out."):
        out.mkdir(parents=True, exist_ok=True)
    replace_file(path, (facts.model_dump_json(indent=2, exclude={"merge"}) + "\n").encode())


def claimed(out: Path) -> ModelFacts:
    """Whose answers a folder holds.

    Raises:
        EvalError: nobody's.
    """
    found = json_or_nothing(out / MODEL)
    try:
        facts = ModelFacts.model_validate(found)
    except ValidationError:
        where = Where(path=str(out / MODEL))
        raise EvalError(f"{out}: holds no answers", todo="Run without --score-only first.", where=where) from None
    return facts.model_copy(update={"merge": merge_facts(Path(facts.path))}) if facts.path else facts


def _who(facts: Mapping[str, Any]) -> dict[str, Any]:
    generator = {key: value for key, value in (facts.get("generator") or {}).items() if key not in ANYWHERE}
    own = {key: facts.get(key) for key in ("name", "weights")}
    return own | {f"generator's {key}": value for key, value in generator.items()}


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    changed = [key for key in sorted(then.keys() | now.keys()) if then.get(key) != now.get(key)]
    return ", ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in changed)
