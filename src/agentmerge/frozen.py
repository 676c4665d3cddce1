"""The frozen models that everything typed is made of: values, what a user wrote, and what a user reads."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST = 12
"""Rows of a table, and entries of a mapping, that a notebook shows."""
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxlevel = 60, 60, 4, 4, 2


class Frozen(BaseModel):
    """A value: it never changes and has no fields but its own; a docstring under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Settings(Frozen):
    """What a user wrote: besides, no NaN or inf, and no truth value where a number or a text is meant."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, bool):
            return value
        if not _takes_truth_values(cls.model_fields[info.field_name or ""].annotation):  # they would count as 1 and 0
            todo = "put quotes around a text (some read yes, no, on and off so)"
            raise ValueError(f"expected a number or text, not true or false; {todo}")
        return value


class Record(Frozen):
    """What a user reads, also at a prompt and in a notebook: a line as text, tables as HTML, its own names in `dir`."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, _Words(_words(value))

    def __dir__(self) -> list[str]:
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Frozen)]
        names = {name for kind in kinds for name in vars(kind) if name != "model_config"} | set(type(self).model_fields)
        return sorted(name for name in names if not name.startswith("_"))

    def _repr_html_(self) -> str:
        return f"<b>{type(self).__name__}</b>{_html(self)}"


class _Words(str):
    """Text whose repr is itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _words(value: Any) -> str:
    """A field's value in a few words: of models in it, what they are and how many."""
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}(...)"
    if isinstance(value, Mapping) and len(value) > 0:
        names = list(map(str, value))
        return f"{{{', '.join(names[:4])}{f', and {len(names) - 4} more' if len(names) > 4 else ''}}}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], BaseModel):
        return f"[{len(value)} of {type(value[0]).__name__}]"
    return _SHORT.repr(value)


def _html(value: Any) -> str:
    """A value as HTML: a model by its fields, several models of a kind as a table."""
    if isinstance(value, BaseModel):
        return _table([], ([escape(name), _html(held)] for name, held in value))
    if isinstance(value, Mapping) and value:
        if all(isinstance(held, BaseModel) for held in value.values()):
            return _grid(value)
        return _more(value, _table([], ([escape(str(k)), escape(_SHORT.repr(v))] for k, v in _first(value.items()))))
    if isinstance(value, list | tuple) and value:
        if all(isinstance(held, BaseModel) for held in value):
            return _grid(dict(enumerate(value)))
        return _more(value, "<br>".join(escape(str(held)[:200]) for held in _first(value)))
    return escape(str(value)[:200])


def _grid(models: Mapping[Any, BaseModel]) -> str:
    """A row per model, under the names of their fields."""
    names = ["", *type(next(iter(models.values()))).model_fields]
    rows = ([escape(str(key)), *(escape(_cell(held)) for _, held in model)] for key, model in _first(models.items()))
    return _more(models, _table(names, rows))


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _words(value) if isinstance(value, BaseModel | Mapping) else str(value)[:200]
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _first(items: Iterable[Any]) -> list[Any]:
    return list(items)[:MOST]


def _more(items: Any, shown: str) -> str:
    return f"{shown}<i>and {len(items) - MOST:,} more</i>" if len(items) > MOST else shown


def _table(names: list[str], rows: Iterable[list[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr>" if names else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _takes_truth_values(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_truth_values, get_args(annotation)))
