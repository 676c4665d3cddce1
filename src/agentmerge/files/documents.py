"""JSON and YAML into plain data: strictly where a format is ours to check, tolerantly where a file is only copied."""

from __future__ import annotations

import codecs
import json
import reprlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from agentmerge.errors import NOWHERE, SourceError, SourceNotFoundError, Where
from agentmerge.files.os_errors import AGAIN

if TYPE_CHECKING:
    from pathlib import Path

LFS = b"version https://git-lfs"
LFS_TODO = "Run `git lfs pull` in its folder, or `hf download`."
FETCH = "Fetch the file again."
DEEPEST = 100
"""Levels of nesting in a file beside the weights; what walks through it is then safe from any depth."""
PARSER_ERRORS = (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError)
"""What PyYAML raises for one broken text or another."""

_REPR = reprlib.Repr()  # limits depth and length: a hostile value can't flood its own message
_REPR.maxstring, _REPR.maxother, _REPR.maxlist, _REPR.maxdict = 120, 80, 8, 8


def abbreviated(value: object) -> str:
    """Any JSON value for a message: at most a line or so."""
    return _REPR.repr(value)


def present(path: Path) -> bool:
    """Whether there is something of this name.

    Raises:
        SourceError: it is a link that leads nowhere, which is no word for "there is none"; or the folder can't be read.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise dangling(path) from None
        return False
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}.", where=Where(path=str(path))) from error
    return True


def leads_nowhere(path: Path) -> bool:
    """Whether this is a link whose target is not there."""
    return path.is_symlink() and not path.exists()


def dangling(path: Path) -> SourceError:
    """The error for a link whose target is not there."""
    return SourceNotFoundError(
        f"{path}: no such file: it is a link to {path.readlink()}, which is not there",
        expected="the file",
        todo="Fetch it again (`hf download` restores what a cache lost), or copy the folder with its links followed "
        "(cp -rL).",
        where=Where(path=str(path)),
    )


def read_bytes(path: Path) -> bytes:
    """A small file.

    Raises:
        SourceError: it is not there or can't be read.
    """
    if leads_nowhere(path):
        raise dangling(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error}.", where=Where(path=str(path))) from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a small file beside the weights.

    Raises:
        SourceError: it can't be read, or holds something else.
    """
    where, raw = Where(path=str(path)), read_bytes(path)
    try:
        found = json.loads(raw, parse_int=whole_number)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not valid JSON: {str(error)[:200]}", todo=FETCH, where=where) from None
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise SourceError(f"{path}: expected a JSON object, found {kind}", todo=FETCH, where=where)
    if _deep(found):
        raise SourceError(f"{path}: not valid JSON: nested more than {DEEPEST} levels deep", todo=FETCH, where=where)
    return found


def json_or_nothing(path: Path) -> dict[str, Any]:
    """The JSON object of a file that is only compared, not used: {} where it is absent, broken or something else."""
    found = any_json(path)
    return found if isinstance(found, dict) else {}


def any_json(path: Path) -> Any:
    """Whatever a JSON file holds; None where it is absent, broken or nested beyond reason."""
    try:
        found = json.loads(path.read_bytes(), parse_int=whole_number)
    except (OSError, ValueError, RecursionError):
        return None
    return None if _deep([found]) else found


def without_bom(raw: bytes) -> bytes:
    """A text without the mark that some editors put before it."""
    return raw.removeprefix(codecs.BOM_UTF8)


def strict_json(raw: bytes, place: str, where: Where = NOWHERE) -> dict[str, Any]:
    """An object from strict JSON: UTF-8, every name once, no NaN or infinity.

    Args:
        raw: the text.
        place: begins a message.
        where: the same, as data.

    Raises:
        SourceError: names the place and what was found.
    """
    if raw.startswith(LFS):
        raise SourceError(f"{place}: a Git LFS pointer", expected="the file itself", todo=LFS_TODO, where=where)
    try:
        content = json.loads(
            raw.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant, parse_int=whole_number
        )
    except (ValueError, RecursionError) as problem:
        found = f"{place} is not JSON as expected: {str(problem)[:200]}"
        raise SourceError(found, todo=AGAIN, where=where) from problem
    if not isinstance(content, dict):
        raise SourceError(f"{place} is {abbreviated(content)}", expected="a JSON object", todo=AGAIN, where=where)
    return content


def whole_number(text: str) -> int:
    """What JSON reads a whole number by.

    Raises:
        ValueError: it has more digits than Python reads, in words that are about the number.
    """
    if len(text) > sys.get_int_max_str_digits() > 0:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)


def parse_yaml(text: str) -> Any:
    """One YAML document; a key that stands twice is an error, not a silent overwrite.

    Raises:
        ValueError: it is no such document.
    """
    return only_one(parse_documents(text))


def only_one(documents: list[Any]) -> Any:
    """The only one of a text's documents, None where there is none.

    Raises:
        ValueError: there are several.
    """
    if len(documents) > 1:
        raise ValueError(f"it holds {len(documents)} documents (---), expected one")
    return documents[0] if documents else None


def parse_documents(text: str, loader: Any = None) -> list[Any]:
    """Every YAML document of a text that holds something; as strict as `parse_yaml`.

    Args:
        text: the documents.
        loader: one of PyYAML's; None reads YAML 1.1.

    Raises:
        ValueError: one of them is no such document.
    """
    try:
        return [found for found in yaml.load_all(text, loader or _Loader) if found is not None]
    except PARSER_ERRORS as error:
        raise ValueError(str(error)) from None


def yaml_or_nothing(text: str) -> dict[str, Any]:
    """The YAML mapping of a text that is only passed on: {} where it is broken or something else."""
    try:
        found = yaml.safe_load(text)
    except PARSER_ERRORS:
        return {}
    return found if isinstance(found, dict) else {}


def _deep(value: Any) -> bool:
    """Whether plain data is nested more than DEEPEST levels deep."""
    level = [value]
    for _ in range(DEEPEST):
        level = [part for parts in level for part in (parts.values() if isinstance(parts, dict) else parts)
                 if isinstance(part, dict | list)]  # fmt: skip
        if not level:
            return False
    return True


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the name {abbreviated(name)} appears twice")
        for text in (name, value):
            if isinstance(text, str):
                text.encode()  # half a surrogate pair is a str that nothing can print or write
        content[name] = value
    return content


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key that stands twice in one mapping."""


def refuse_digits(text: str, node: yaml.ScalarNode) -> None:
    """Raise ConstructorError for a whole number that Python does not read for its length."""
    if len(text) > sys.get_int_max_str_digits() > 0:
        raise yaml.constructor.ConstructorError(None, None, f"a number of {len(text):,} digits", node.start_mark)


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    refuse_digits(node.value, node)
    return loader.construct_yaml_int(node)


def unique_keys(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    """A mapping, for any of PyYAML's loaders; a key that stands twice in it is an error."""
    loader.flatten_mapping(node)
    content: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
        if key in content:
            raise yaml.constructor.ConstructorError(None, None, f"'{key}' stands twice", key_node.start_mark)
        content[key] = loader.construct_object(value_node, deep=True)
    return content


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, unique_keys)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
