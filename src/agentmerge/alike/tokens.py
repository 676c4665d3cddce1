"""Every token of a tokenizer with its id, and whether two tokenizers agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, Where, shortened
from agentmerge.files.documents import FETCH, present, read_bytes, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
"""The first alone, or the others together."""
SPARE = re.compile(r"^[<\[].*(?:reserved|unused|extra|placeholder|dummy|pad)", re.IGNORECASE)
"""Tokens that a vocabulary keeps for later use; trainers give them a name of their own."""


@dataclass(frozen=True)
class TokenDifference:
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

    Raises:
        SourceError: one of them is a link that leads nowhere, or can't be read.
    """
    hashed = sha256()
    for name in FILES[:1] if present(folder / FILES[0]) else FILES[1:]:
        if present(folder / name):
            hashed.update(name.encode() + read_bytes(folder / name))
    return hashed.digest() if any(present(folder / name) for name in FILES[:2]) else b""


@lru_cache(maxsize=4)
def _parsed(folder: Path, content: bytes) -> dict[str, int]:
    """The tokens of these files; `content` makes the cache forget files that changed."""
    one, plain, added, config = (folder / name for name in FILES)
    path = one if one.exists() else plain
    documents = {p: read_json(p) for p in ((one,) if one.exists() else (plain, added, config)) if p.exists()}
    try:
        if one.exists():
            found = _vocabulary(documents[one]) | _listed(documents[one].get("added_tokens"))
        else:
            found = documents[plain] | documents.get(added, {}) | _decoder(documents.get(config, {}))
        return {str(token): int(i) for token, i in found.items()}
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        text, where = f"{path}: not a tokenizer", Where(path=str(path))
        raise SourceError(text, expected="tokens with ids", todo=FETCH, where=where) from None


def _vocabulary(data: Mapping[str, Any]) -> dict[str, Any]:
    vocab = data["model"]["vocab"]
    return {entry[0]: i for i, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)


def _listed(tokens: Iterable[Mapping[str, Any]] | None) -> dict[str, Any]:
    return {token["content"]: token["id"] for token in tokens or ()}


def _decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens that only tokenizer_config.json adds."""
    return {token["content"]: int(i) for i, token in (config.get("added_tokens_decoder") or {}).items()}


def compare(ours: Mapping[str, int], theirs: Mapping[str, int]) -> TokenDifference:
    """How another tokenizer differs; a token under another id would mix unrelated rows, whatever the sizes.

    Args:
        ours: of the base.
        theirs: of an agent.
    """
    if ours == theirs:
        return TokenDifference((), (), (), "")
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
    return TokenDifference(tuple(moved), tuple(renamed), tuple(sorted(added)), example)


def quoted(tokens: Iterable[str]) -> str:
    """Some tokens for a message."""
    return shortened(repr(token) for token in tokens)
