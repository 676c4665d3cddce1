"""What lies beside a source's weights: its config, and which files are its tokenizer's."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from agentmerge.files.documents import json_or_nothing, present, read_json

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = (
    "tokenizer*", "tokenization_*", "*_tokenizer.json", "*-tokenizer.json", "*.model", "*.tiktoken", "tiktoken*",
    "vocab", "vocab.*", "vocab[-_]*", "*[-_]vocab.json", "*[-_]vocab.txt", "*.vocab", "merges.txt", "merges.*",
    "*[-_]merges.txt", "bpe", "bpe.*", "*.bpe", "codes", "codes.*", "*.codes", "dict.*", "*.dict", "*.spm",
    "spiece*", "*.spiece", "sentencepiece*", "tekken*.json", "special_tokens*", "added_tokens*", "chat_template*",
    "normalizer.json", "emoji.json",
)  # fmt: skip
"""What a tokenizer's files are called, its chat template and its code among them."""
NOT_TOKENIZER = ("vocabulary*", "*.md", "modeling_*")
WITHOUT_TOKENS = ("tokenizer_config", "tokenization_", "special_tokens", "added_tokens", "chat_template")


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a mapping; {} when there is none.

    Raises:
        SourceError: it is no JSON object, or a link that leads nowhere.
    """
    path = folder / "config.json"
    return read_json(path) if present(path) else {}


def is_tokenizer(name: str) -> bool:
    """Whether a relative path belongs to the tokenizer or its chat template, by its name alone."""
    last = name.rpartition("/")[2]
    if name.startswith(("additional_chat_templates/", "tokenizer/")):
        return True
    return _matches(last, TOKENIZER) and not _matches(last, NOT_TOKENIZER)


def has_tokenizer(folder: Path) -> bool:
    """Whether any file of a tokenizer lies in a folder."""
    return any(is_tokenizer(path.name) for path in folder.iterdir())


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder holds the tokens themselves, and not just settings, templates or code."""
    return any(is_tokenizer(path.name) and not path.name.startswith(WITHOUT_TOKENS) for path in folder.iterdir())


def tokenizer_names(folder: Path) -> frozenset[str]:
    """The files of a folder that its tokenizer_config.json names: vocabularies, and the code that auto_map leads to."""
    config = json_or_nothing(folder / "tokenizer_config.json")
    code = config.get("auto_map")
    code = code.get("AutoTokenizer") if isinstance(code, dict) else code
    modules = [str(part).partition(".")[0] + ".py" for part in (code if isinstance(code, list) else [code]) if part]
    named = [value for key, value in config.items() if key.endswith("_file") and isinstance(value, str)]
    return frozenset(name.removeprefix("./") for name in (*modules, *named))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
