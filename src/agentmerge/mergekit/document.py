"""The text of a file, and the one configuration that it holds; what else a file may be is told by its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agentmerge.errors import RecipeError, Where
from agentmerge.files.documents import parse_documents

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK = re.compile(r"^ *(?:```|~~~)[^\n]*\n(.*?)^ *(?:```|~~~) *$", re.DOTALL | re.MULTILINE)
_METHOD = re.compile(r"^ *merge_method *:", re.MULTILINE)
MIXTURE_KEYS = ("experts", "gate_mode", "experts_per_token", "shared_experts", "positive_prompts")
"""Keys of a mergekit-moe configuration."""


def read_document(path: Path) -> dict[str, Any]:
    """The configuration of a file, as plain data.

    Raises:
        RecipeError: the file is not there, or holds something else: what it is, as far as that can be told.
    """
    text = _text(path)
    where = Where(source=str(path))
    if path.suffix.lower() in (".md", ".markdown") or _begins_as_card(text):
        raise _card(path, text)
    try:
        documents = parse_documents(text)
    except ValueError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}", where=where) from None
    if len(documents) > 1:
        raise _several(path, documents)
    data = documents[0] if documents else None
    if not isinstance(data, dict):
        expected = "a mergekit configuration with merge_method"
        raise RecipeError(f"{path}: expected {expected}, found {data!r:.80}.", where=where)
    _refuse_others(path, data)
    return data


def _text(path: Path) -> str:
    where = Where(source=str(path))
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such mergekit configuration.", where=where) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: can't be read as a mergekit configuration: {error}", where=where) from None


def _begins_as_card(text: str) -> bool:
    """Whether a text is Markdown: its configuration stands in a code block, and nothing outside of one is YAML."""
    return bool(_METHOD.search(text)) and not _METHOD.search(_BLOCK.sub("", text))


def _card(path: Path, text: str) -> RecipeError:
    held = [block for block in _BLOCK.finditer(text) if _METHOD.search(block[1])]
    lines = [text.count("\n", 0, block.start(1)) + 1 for block in held]
    todo = "The configuration of a merge usually lies beside it, as mergekit_config.yml."
    if held:
        places = " and ".join(map(str, lines))
        todo = f"One stands in its code block at line {places}: copy what is in the block to a file of its own."
    found = f"{path}: this is a model card, or another text"
    return RecipeError(found, expected="a mergekit configuration", todo=todo, where=Where(source=str(path)))


def _several(path: Path, documents: list[Any]) -> RecipeError:
    """The merges of a file for mergekit-multi, by name; what one makes, the next one reads."""
    names = [str(found.get("name") or "without a name") for found in documents if isinstance(found, dict)]
    found = f"{path}: this file holds {len(documents)} documents (---): {', '.join(names) or 'no configuration'}"
    todo = (
        "Write each to a file of its own, convert and merge them in their order, and name the folder of the one where "
        "the next reads it."
    )
    return RecipeError(found, expected="one merge", todo=todo, where=Where(source=str(path)))


def _refuse_others(path: Path, data: dict[str, Any]) -> None:
    """Raise RecipeError for a file that is for another tool: a mixture of experts, or a recipe of ours."""
    where = Where(source=str(path))
    for key in MIXTURE_KEYS:
        if key in data:
            found = f"{path}: {key}: found {data[key]!r:.160}; it builds a mixture of experts, which is not here."
            raise RecipeError(found, todo="Nearest: merge the agents instead.", where=where)
    if "merge_method" not in data and {"agents", "method"} & data.keys():
        found = f"{path}: merge_method: missing, but this is a recipe already"
        raise RecipeError(found, todo=f"Merge it: agentmerge merge {path} --out DIR", where=where)
