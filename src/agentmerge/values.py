"""The values of a recipe's fields as people write them: names, paths and sizes."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, Field

from agentmerge.errors import RecipeError, Where
from agentmerge.files.paths import expanded_text

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]


def _whole_size(value: Any) -> Any:
    """ByteSize reads the beginning of "5GB/s"; a size has nothing behind its unit."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d{1,18}(\.\d+)?\s*[A-Za-z]*\s*", value):
        raise ValueError("expected a size such as 5GB, 8MB or 1GiB")
    if isinstance(value, int | float) and value >= 10**18:
        raise ValueError("expected less than 10^18 bytes")
    return value


Size = Annotated[ByteSize, BeforeValidator(_whole_size)]


def _path_text(value: Any) -> Any:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return expanded_text(text) if isinstance(text, str) else text


PathText = Annotated[str, BeforeValidator(_path_text)]
"""A path as text, its "~" expanded; from Python it may be a Path."""


def recipe_in(data: Any, path: str) -> Any:
    """What a file says as a recipe: what it holds, or the recipe within the record of a merge.

    Raises:
        RecipeError: it is another record of ours.
    """
    kind = data.get("format") if isinstance(data, dict) else None
    if not (isinstance(kind, str) and kind.startswith("agentmerge.")):
        return data
    if kind.startswith("agentmerge.record/") and isinstance(data.get("recipe"), dict):
        return data["recipe"]
    todo = "Give it beside a recipe: --survey FILE." if kind.startswith("agentmerge.survey/") else ""
    expected = "a recipe, or the merge_record.json of a merge, which holds one"
    raise RecipeError(f"{path}: is a record ({kind})", expected=expected, todo=todo, where=Where(path=path))


def format_flop(flop: float) -> str:
    """In the largest fitting unit: "31.4 PFLOP"."""
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flop >= size:
            return f"{flop / size:.1f} {unit}"
    return f"{flop / 1e6:.1f} MFLOP"


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their paths as mappings within each other: {"then.density": 0.5} is {"then": {"density": 0.5}}."""
    found: dict[str, Any] = {}
    for path, value in settings.items():
        *outer, last = path.split(".")
        place = found
        for name in outer:
            held = place.get(name, {})
            place[name] = held if isinstance(held, dict) else {"name": held}  # an inner method by its name alone
            place = place[name]
        place[last] = value
    return found
