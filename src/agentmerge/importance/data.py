"""Prompts and responses from JSON lines."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, SourceNotFoundError, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FORM = '{"prompt": "text, or a list of chat messages", "response": "text"}'
PROMPTS = '{"prompt": "text, or a list of chat messages", "skill": "name", "response": "text"}'
"""Where only the prompt must be there."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and what the agent answered."""

    prompt: str | tuple[dict[str, Any], ...]
    """Plain text, or chat messages, each with a "role"."""
    response: str
    """"" where the file has none and need not have one."""
    line: int
    """Of its file, from 1 on."""
    skill: str = ""
    """What it asks for; "" where nothing is said."""


def read_examples(path: Path, *, answered: bool = True) -> Iterator[Example]:
    """The examples of a JSON lines file in their order, read as they are asked for; empty lines are passed over.

    Args:
        path: of the file.
        answered: whether every line must have a response.

    Raises:
        SourceError: the file can't be read, or a line is no example; the message names file and line.
    """
    with _readable(path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield parse_example(line, f"{path}:{number}", number, answered=answered)


def in_turn(examples: Iterable[Example]) -> Iterator[Example]:
    """The first of every skill, the second of every skill, ...; where no skill is said, as they come."""
    rest = iter(examples)
    held: dict[str, list[Example]] = {}
    for example in rest:
        if not example.skill and not held:
            yield example
            yield from rest
            return
        held.setdefault(example.skill, []).append(example)
    for turn in zip_longest(*held.values()):
        yield from (example for example in turn if example is not None)


def sha256_of(path: Path) -> str:
    """The hash of a file's bytes, as hexadecimal.

    Raises:
        SourceError: it can't be read.
    """
    with _readable(path), path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def parse_example(text: bytes, where: str, line: int, *, answered: bool = True) -> Example:
    """One line of JSON; fields other than prompt, response and skill are ignored.

    Args:
        text: UTF-8.
        where: file and line, for messages.
        line: its number.
        answered: whether it must have a response.

    Raises:
        SourceError: it is no JSON object, or a field is missing, empty or of the wrong kind.
    """
    data, form = _json(text, where), FORM if answered else PROMPTS
    if not isinstance(data, dict):
        raise SourceError(f"{where}: expected {form}, found {_shown(data)}.", where=Where(path=where))
    missing = [field for field in ("prompt", "response")[: 2 if answered else 1] if field not in data]
    if missing:
        lacking = f"{where}: no {' and no '.join(missing)}, found {', '.join(sorted(data)[:8]) or 'nothing'}."
        raise SourceError(lacking, expected=form, where=Where(path=where))
    response = _response(data["response"], where) if answered or data.get("response") is not None else ""
    return Example(_prompt(data["prompt"], where), response, line, _skill(data.get("skill", ""), where))


def _json(text: bytes, where: str) -> Any:
    try:
        data = json.loads(text.decode("utf-8-sig" if text.startswith(b"\xef\xbb\xbf") else "utf-8"))
        json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is a str that no tokenizer takes
    except UnicodeError as error:
        refused = f"{where}: not UTF-8 text: {error}"
        raise SourceError(refused, todo="Save the file as UTF-8.", where=Where(path=where)) from None
    except (ValueError, RecursionError) as error:
        refused = f"{where}: not JSON: {error}."
        raise SourceError(refused, expected=f"one object a line: {FORM}", where=Where(path=where)) from None
    return data


def _prompt(value: Any, where: str) -> str | tuple[dict[str, Any], ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        for i, message in enumerate(value):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                expected = '{"role": ..., "content": ...}'
                found = f"{where}: prompt[{i}] is {_shown(message)}"
                raise SourceError(found, expected=expected, where=Where(path=where))
        return tuple(value)
    expected = "text or a list of chat messages, not empty"
    raise SourceError(f"{where}: prompt is {_shown(value)}", expected=expected, where=Where(path=where))


def _response(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise SourceError(f"{where}: response is {_shown(value)}", expected="text", where=Where(path=where))
    if not value:
        raise SourceError(
            f"{where}: the response is empty",
            expected="the agent's answer",
            todo="Remove the line.",
            where=Where(path=where),
        )
    return value


def _skill(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise SourceError(f"{where}: skill is {_shown(value)}", expected="text", where=Where(path=where))
    return value


def _shown(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.80}"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        lacking, expected = f"{path}: no such data file", f"JSON lines of {FORM}"
        raise SourceNotFoundError(lacking, expected=expected, where=Where(path=str(path))) from None
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error}.", where=Where(path=str(path))) from None
