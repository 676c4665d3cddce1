"""Paths as people write them: "~" is the home of whoever runs this, wherever a path is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path, with the home folder in the place of a leading "~" or "~NAME"; as it is where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def expanded_text(text: str) -> str:
    """The same of a text; one that begins otherwise, such as an id on the hub, stays to the letter."""
    return str(expanded(text)) if text.startswith("~") else text
