"""Whether a model that somebody named is the base that is open: by name, as only names are known of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.files.documents import json_or_nothing

if TYPE_CHECKING:
    from agentmerge.sources.source import Source


def is_another(name: str, base: Source) -> bool:
    """Whether a model's name, id or path is none of those that the base is known by.

    Args:
        name: such as a trainer wrote it down, perhaps on another machine: folders and owners count for nothing.
        base: open.
    """
    ours = base.folder.path.resolve()
    named = str(json_or_nothing(ours / "config.json").get("_name_or_path", ""))
    return _last(name) not in {_last(base.text), _last(str(ours)), _last(named)}


def _last(name: str) -> str:
    """A model's own name, without its owner, folder, revision and cache, in small letters."""
    parts = Path(name.partition("@")[0]).parts
    cached = [part for part in parts if part.startswith("models--")]
    return (cached[-1].rpartition("--")[2] if cached else parts[-1] if parts else "").lower()
