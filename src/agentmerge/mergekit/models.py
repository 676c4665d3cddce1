"""How a mergekit configuration names a model: a path or hub id as text, perhaps with a revision, or a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmerge.mergekit.parameters import Problems

EXPECTED = "a path or a hub id as text, or {model: {path, revision}}"


def read_model(value: Any, where: str, problems: Problems | None) -> str | None:
    """A model as PATH or ID[@REVISION]; None where it is none of ours, which `problems`, where given, is told."""
    if isinstance(value, dict) and set(value) <= {"model", "lora", "override_architecture"}:
        lora = value.get("lora")
        return _named(value.get("model"), value if lora is None else f"{value.get('model')}+{lora}", where, problems)
    return _named(value, value, where, problems)


def _named(model: Any, shown: Any, where: str, problems: Problems | None) -> str | None:
    if isinstance(model, dict) and model is not shown and set(model) <= {"path", "revision"}:
        revision = model.get("revision")
        model = f"{model.get('path') or ''}@{revision}" if revision else model.get("path")
    if not isinstance(model, str) or not model:
        if problems is not None:
            problems.refuse(where, shown, expected=EXPECTED)
        return None
    if "+" in (shown if isinstance(shown, str) else model):
        if problems is not None:
            why = "mergekit reads it as a model and a LoRA adapter, which can't be applied here."
            nearest = "merge the adapter into its model first (PEFT: merge_and_unload) and name the result"
            problems.refuse(where, shown, why, nearest=nearest)
        return None
    folder = model.rpartition("@")[0]
    return folder if folder and not Path(model).exists() and Path(folder).is_dir() else model
