"""Files that hold no weights and were named as if they did: what they are, and where the weights may be."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {"{": "a JSON file", "[": "a JSON file", "<": "an HTML or XML page"}
"""By its first character, what a text is."""
CONTROL = "\t\n\r\f\x1b"
"""Characters below the space that texts have."""


def text_kind(head: bytes) -> str:
    """What kind of text begins so: "a JSON file", "a text file"; "" where it is none.

    Args:
        head: the first bytes of a file, which may end within a character.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return ""
    if not text.strip() or any(letter < " " and letter not in CONTROL for letter in text):
        return ""
    return TEXTS.get(text.lstrip()[0], "a text file")


def weights_of(path: Path, suffixes: tuple[str, ...]) -> str:
    """What to do with a file that holds no weights.

    Args:
        path: the file.
        suffixes: of files that hold some; where it has one of them, it is not what it should be.
    """
    if path.name.endswith(suffixes):
        return "Download or save it again."
    return f"Give the folder that the weights lie in, for example {path.parent}, or the file of the weights."
