"""One rule of a recipe: which tensors, and what it changes in a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from agentmerge.errors import Problem, RecipeError, Where, did_you_mean
from agentmerge.frozen import Settings
from agentmerge.methods.base import MergeMethod
from agentmerge.methods.names import hinted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.methods.base import Context


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Rule(Settings):
    """Other settings for the tensors a glob matches; later rules win."""

    model_config = ConfigDict(extra="allow")

    tensors: str = Field(min_length=1)
    """A glob that tensor names are compared with, such as `*.mlp.*`."""
    take: str | None = None
    """The tensor is copied from here: base, or an agent's name."""
    skip: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    """Agents that count as unchanged here; an empty list ends what earlier rules skip."""

    def says(self, field: str) -> bool:
        """Whether the user wrote this field; what is not said stays as earlier rules left it."""
        return field in self.model_fields_set

    @model_serializer(mode="wrap")
    def _as_said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {field: value for field, value in dump(self).items() if self.says(field)}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method that this rule changes."""
        return dict(self.model_extra or {})

    def applied_to(self, method: MergeMethod, where: str = "rule") -> MergeMethod:
        """The method with this rule's settings in place of its own, setting by setting at every depth; not bound.

        Raises:
            RecipeError: an unknown setting or a value out of range, with its path.
        """
        known = {*type(method).model_fields, *Rule.model_fields} - {"name"}
        unknown = [field for field in self.settings if field not in known]
        if unknown:
            raise RecipeError(*(_unknown_field(f"{where}.{field}", field, known) for field in unknown))
        return method.varied(self.settings, where) if self.settings else method


def check_rules(rules: Sequence[Rule], method: MergeMethod, context: Context) -> None:
    """Refuse a rule that fits neither the recipe's method nor one that the rules before it can make of it.

    A rule may bring in another inner method, and a later one may change that; which of them meet is known with the
    tensors' names alone.

    Raises:
        RecipeError: of the first such rule, with its path.
    """
    possible, seen = {_shape(method): method}, set[Any]()
    for i, rule in enumerate(rules):
        key = _key(rule.settings, len(possible))
        if not rule.settings or (key is not None and key in seen):
            continue
        seen.add(key)
        made = [_applied(rule, known, context, f"rules.{i}") for known in possible.values()]
        fitting = [found for found in made if isinstance(found, MergeMethod)]
        if not fitting:
            raise next(found for found in made if isinstance(found, RecipeError))
        possible = {_shape(found): found for found in fitting} | possible


def _key(settings: dict[str, Any], possible: int) -> Any:
    """What tells rules apart whose settings need be checked once only; None for those that can't be compared."""
    key = (possible, *((name, type(value), value) for name, value in settings.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _applied(rule: Rule, method: MergeMethod, context: Context, where: str) -> MergeMethod | RecipeError:
    try:
        return rule.applied_to(method, where).bind(replace(context, where=where))
    except RecipeError as error:
        return error


def _shape(value: Any) -> Any:
    """What decides which settings fit: the names of methods within each other, and the keys of mappings."""
    if isinstance(value, MergeMethod):
        return (value.name, *(_shape(getattr(value, field)) for field in type(value).model_fields if field != "name"))
    return tuple(sorted(value)) if isinstance(value, Mapping) else None


def _unknown_field(path: str, field: str, known: Iterable[str]) -> Problem:
    hint = did_you_mean(field, known).strip()
    return hinted(Problem(f"{path}: unknown field", todo=hint, where=Where(path=path)))
