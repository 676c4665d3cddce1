"""What lies beside a source's weights: its config, and which files are its tokenizer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.files.documents import read_json

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = (
    "tokenizer", "tokenization_", "vocab.", "merges.txt", "special_tokens_map", "added_tokens", "chat_template",
    "spiece.", "sentencepiece", "tekken.json",
)  # fmt: skip
"""How the names of a tokenizer's files begin."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a mapping; {} when there is none.

    Raises:
        SourceError: it is no JSON object.
    """
    path = folder / "config.json"
    return read_json(path) if path.exists() else {}


def is_tokenizer(name: str) -> bool:
    """Whether a relative path belongs to the tokenizer or its chat template."""
    return name.rpartition("/")[2].startswith(TOKENIZER) or name.startswith("additional_chat_templates/")


def has_tokenizer(folder: Path) -> bool:
    """Whether any file of a tokenizer lies in a folder."""
    return any(is_tokenizer(path.name) for path in folder.iterdir())
