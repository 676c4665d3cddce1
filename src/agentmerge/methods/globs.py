"""Settings that are globs of tensor names: how they are written, and which names they fit."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from agentmerge.files.core_yaml import parse_core_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentmerge.methods.base import MergeMethod

QUOTES = "'\""


@dataclass(frozen=True, slots=True)
class Naming:
    """What the globs of a setting are compared with."""

    of: str = ""
    """A method of the class that says whether a tensor is one of those that the setting is about; "" for matrices."""
    lower: bool = False
    """Whether names are written in small letters first."""

    def matches(self, name: str, globs: Iterable[str]) -> bool:
        """Whether one of the globs fits the whole name."""
        return matches(name.lower() if self.lower else name, globs)


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether one of the globs fits the whole name."""
    return any(fnmatchcase(name, glob) for glob in globs)


def globs_of(value: Any) -> Any:
    """Globs of one text: "a*,b*", or a list as YAML and JSON have it, with or without quotes; what is no text stays.

    A comma between square brackets is part of a glob, as in "*[0,2].weight"; "[01].weight" begins with such.

    Raises:
        ValueError: a quote is left or an entry is empty, so that it can't be a glob.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        return ()
    globs = _listed(text) if _is_list(text) else split_apart(text)
    found = tuple(glob.strip() if isinstance(glob, str) else glob for glob in globs)
    for glob in found:
        if isinstance(glob, str) and (not glob or any(quote in glob for quote in QUOTES)):
            what = "an empty entry" if not glob else f"a quote in {glob}"
            raise ValueError(f'expected globs with commas between them, or a list such as ["a*", "b*"]; {what}')
    return found


def split_apart(text: str) -> list[str]:
    """The parts of a text between commas that stand in no brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth = max(depth - 1, 0)
        elif letter == "," and not depth:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def _is_list(text: str) -> bool:
    """Whether the bracket that a text begins with is closed by its last letter."""
    if not (text.startswith("[") and text.endswith("]")):
        return False
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if not depth:
            return i == len(text) - 1
    return False


def _listed(text: str) -> list[Any]:
    """The entries of "[...]"; a shell may have taken the quotes, and YAML has other uses for a * without them."""
    inner = text[1:-1]
    if any(quote in inner for quote in QUOTES):
        try:
            found = parse_core_yaml(text)
        except ValueError as error:
            raise ValueError(f'expected a list of globs such as ["a*", "b*"]: {error}') from None
        return list(found)
    return split_apart(inner) if inner.strip() else []


Globs = Annotated[tuple[str, ...], BeforeValidator(globs_of), Naming()]
"""Patterns of names of matrices; in a text, commas lie between them."""
LayerGlobs = Annotated[tuple[str, ...], BeforeValidator(globs_of), Naming("is_linear")]
"""Patterns of names of tensors that a method merges as matrices."""
SmallGlobs = Annotated[tuple[str, ...], BeforeValidator(globs_of), Naming(lower=True)]
"""Patterns of names in small letters."""


def glob_settings(method: MergeMethod) -> Iterator[tuple[str, Naming, tuple[str, ...]]]:
    """The settings of one method that are globs: name, what they are compared with, and the globs that are no default.

    A default is written for many architectures, so it may match nothing.
    """
    for name, field in type(method).model_fields.items():
        naming = next((one for one in field.metadata if isinstance(one, Naming)), None)
        if naming is not None:
            default = {glob for preset in (field.default, *_preset(method, name)) for glob in preset}
            yield name, naming, tuple(glob for glob in getattr(method, name) if glob not in default)


def _preset(method: MergeMethod, field: str) -> Iterator[tuple[str, ...]]:
    found = method.presets.get(method.name, {}).get(field)
    if found is not None:
        yield tuple(found)
