"""Every token of a tokenizer with its id, and whether two tokenizers agree. Knows no tensors."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
"""The first alone, or the others together."""
SPARE = re.compile(r"^[<\[].*(?:reserved|unused|extra|placeholder|dummy|pad)", re.IGNORECASE)
"""Tokens that a vocabulary keeps for later use; trainers give them a name of their own."""


@dataclass(frozen=True)
class Difference:
    """What one tokenizer says otherwise than another."""

    moved: tuple[str, ...]
    """Tokens of both under another id, and tokens in the place of another one."""
    renamed: tuple[str, ...]
    """Tokens in the place of a spare one."""
    added: tuple[str, ...]
    """Tokens under ids that the other does not use."""
    example: str
    """The first moved token, with both ids."""


def token_ids(folder: Path) -> dict[str, int] | None:
    """Every token with its id, from tokenizer.json, or from vocab.json and the added tokens; None without them.

    Raises:
        SourceError: a file is no valid JSON of its kind.
    """
    content = content_of(folder)
    return _parsed(folder, content) if content else None


def content_of(folder: Path) -> bytes:
    """Tells one tokenizer's files from another's without understanding them; b"" where there are none.

    A tokenizer of 150,000 tokens takes 100 MB to parse, and most agents have their base's to the byte.
    """
    hashed = sha256()
    for name in FILES[:1] if (folder / FILES[0]).exists() else FILES[1:]:
        if (folder / name).exists():
            hashed.update(name.encode() + _bytes(folder / name))
    return hashed.digest() if any((folder / name).exists() for name in FILES[:2]) else b""


@lru_cache(maxsize=4)
def _parsed(folder: Path, content: bytes) -> dict[str, int]:
    """The tokens of these files; `content` makes the cache forget files that changed."""
    whole, plain, added = (folder / name for name in FILES[:3])
    path = whole if whole.exists() else plain
    try:
        if whole.exists():
            data = _json(whole)
            vocab = data["model"]["vocab"]
            ids = {entry[0]: i for i, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
            found = ids | {token["content"]: token["id"] for token in data.get("added_tokens") or ()}
        else:
            found = _json(plain) | (_json(added) if added.exists() else {}) | _decoder(folder)
        return {str(token): int(i) for token, i in found.items()}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: not a tokenizer, expected tokens with ids. Fetch the file again.") from None


def compare(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Difference:
    """How another tokenizer differs; a token under another id would mix unrelated rows, whatever the sizes.

    Args:
        ours: of the base.
        theirs: of an agent.
    """
    if ours == theirs:
        return Difference((), (), (), "")
    at = {i: token for token, i in ours.items()}
    moved, renamed, added, example = [], [], [], ""
    for token, i in theirs.items():
        mine = ours.get(token)
        if mine == i:
            continue
        there = at.get(i)
        if mine is None and there is None:
            added.append(token)
        elif mine is None and there is not None and there not in theirs and SPARE.search(there):
            renamed.append(token)
        else:
            moved.append(token)
            was = f"the base has it at id {mine}" if mine is not None else f"the base has {there!r} there"
            example = example or f"{token!r} at id {i} ({was})"
    return Difference(tuple(moved), tuple(renamed), tuple(sorted(added)), example)


def few(tokens: Iterable[str]) -> str:
    """Some tokens for a message."""
    return shortened([repr(token) for token in tokens])


def _decoder(folder: Path) -> dict[str, int]:
    """The tokens that only tokenizer_config.json adds."""
    path = folder / "tokenizer_config.json"
    found = _json(path).get("added_tokens_decoder") if path.exists() else None
    return {token["content"]: int(i) for i, token in (found or {}).items()}


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: can't be read as JSON: {str(error)[:200]}. Fetch the file again.") from None
    if not isinstance(data, dict):
        raise SourceError(f"{path}: found {type(data).__name__}, expected a JSON object. Fetch the file again.")
    return data


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error}.") from error
