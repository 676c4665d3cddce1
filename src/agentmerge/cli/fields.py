"""The fields of a model for people: what may be written, the default and the meaning, read from the model itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import ByteSize

from agentmerge.cli.sizes import format_size
from agentmerge.methods.base import MergeMethod
from agentmerge.recipe import SECTIONS, AgentSource, Recipe
from agentmerge.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from agentmerge.frozen import Frozen

KINDS: dict[Any, str] = {
    bool: "true|false",
    int: "<integer>",
    float: "<number>",
    str: "<text>",
    ByteSize: "<size>",
    NoneType: "null",
    dict: "<mapping>",
    MergeMethod: "<name>|<mapping>",
    tuple: "<list>",
}
"""What is written for a value of each type; words in angle brackets stand for values, others for themselves."""


INNER: dict[str, dict[str, type[Frozen]]] = {
    "agents": {"agents.NAME": AgentSource},
    "rules": {"rules.N": Rule},
    **{name: {name: section} for name, section in SECTIONS.items()},
}
"""Where a field of the recipe holds fields: their path, and their model."""


@dataclass(frozen=True, slots=True)
class ModelField:
    """One field."""

    section: str
    """Where a recipe has it; "" for the recipe itself."""
    name: str
    values: tuple[str, ...]
    """Words that may be written, and "<kind>" where any value of a kind may."""
    default: str
    """As it is written; "" where the field must be given."""
    meaning: str

    @property
    def path(self) -> str:
        """Its path in a recipe, as in complaints: "output.dtype"."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def flag(self) -> bool:
        """Whether it is false unless it is asked for."""
        return self.values == ("true", "false") and self.default == "false"


def recipe_fields() -> Iterator[ModelField]:
    """Every field of a recipe in the order of the models; a section's fields stand in its place."""
    for name, field in Recipe.model_fields.items():
        if name not in SECTIONS:
            yield _field_of("", name, field)
        for section, model in INNER.get(name, {}).items():
            yield from fields_of(model, section)


def fields_of(model: type[Frozen], section: str = "") -> Iterator[ModelField]:
    """The fields of one model."""
    return (_field_of(section, name, field) for name, field in model.model_fields.items())


def _field_of(section: str, name: str, field: FieldInfo) -> ModelField:
    values = tuple(dict.fromkeys(_values_of(field.annotation)))
    default = "" if field.is_required() else _written(field.default)
    return ModelField(section, name, values, default, " ".join((field.description or "").split()))


def _values_of(annotation: Any) -> Iterator[str]:
    """The words and kinds that an annotation allows."""
    kind = get_origin(annotation) or annotation
    if kind is Literal:
        yield from map(str, get_args(annotation))
    elif kind in KINDS:
        yield from KINDS[kind].split("|")
    else:  # a union, or a type with conditions
        for part in get_args(annotation)[: 1 if kind is Annotated else None]:
            yield from _values_of(part)


def _written(default: Any) -> str:
    """A default as a recipe spells it."""
    if isinstance(default, ByteSize):
        return format_size(default).replace(".0", "")
    return json.dumps(default) if not isinstance(default, str) else default
