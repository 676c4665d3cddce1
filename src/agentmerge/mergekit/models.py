"""How a mergekit configuration names a model: a path or hub id as text, perhaps with a revision, or a mapping.

A model may have a LoRA adapter: `MODEL+ADAPTER`, or {model: MODEL, lora: ADAPTER}. Here an adapter is an agent over the
base, so that one whose model is the base is named alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmerge.mergekit.parameters import Problems

EXPECTED = "a path or a hub id as text, or {model: {path, revision}}"
READ_OVER_BASE = "mergekit reads it as a model and a LoRA adapter; here an adapter is an agent over the base,"
MERGE_FIRST = "merge the adapter into its model first (PEFT: merge_and_unload) and name the result"


def read_model(value: Any, where: str, problems: Problems | None, base: str | None = None) -> str | None:
    """A model as PATH or ID[@REVISION]; None where it is none of ours.

    Args:
        value: what stands there.
        where: the path of the field.
        problems: is told why it is none of ours, and where an adapter stands for itself; None tells nobody.
        base: what an adapter may be over; None where it may be none.
    """
    model, adapter = _parts(value)
    named, lora = _text(model), None if adapter is None else _text(adapter)
    if named is None or (adapter is not None and (lora is None or "+" in lora)):
        if problems is not None:
            problems.refuse(where, value, expected=EXPECTED)
        return None
    if lora is None:
        return named
    if base is None or named != base:
        if problems is not None:
            why = "and can't be the base." if base is None else f"and {named} is not the base ({base})."
            shown = value if isinstance(value, str) else f"{named}+{lora}"
            problems.refuse(where, shown, f"{READ_OVER_BASE} {why}", nearest=MERGE_FIRST)
        return None
    if problems is not None:
        problems.note(
            f"{named}+{lora}: the adapter is an agent by itself, read over the base; its sum is rounded to the base's "
            "dtype (agents.NAME.materialize)"
        )
    return lora


def _parts(value: Any) -> tuple[Any, Any]:
    """The model and its adapter, None where there is none."""
    model, adapter = value, None
    if isinstance(value, dict):
        if not set(value) <= {"model", "lora", "override_architecture"}:
            return None, None
        model, adapter = value.get("model"), value.get("lora")
    if isinstance(model, str) and "+" in model and adapter is None:
        model, _, adapter = model.partition("+")
    return model, adapter


def _text(model: Any) -> str | None:
    """A model or an adapter by its path and revision; None where it says none."""
    if isinstance(model, dict) and set(model) <= {"path", "revision"}:
        revision = model.get("revision")
        model = f"{model.get('path') or ''}@{revision}" if revision else model.get("path")
    if not isinstance(model, str) or not model:
        return None
    folder = model.rpartition("@")[0]
    return folder if folder and not Path(model).exists() and Path(folder).is_dir() else model
