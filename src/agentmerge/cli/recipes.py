"""A recipe from the words of a command line, with or without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import RecipeError, Where, did_you_mean, shown
from agentmerge.files.core_yaml import parse_core_yaml
from agentmerge.methods.globs import split_apart
from agentmerge.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

METHOD = "ram_plus"
"""Where neither the file nor an option names one."""


def build_recipe(
    file: Path | None,
    values: Mapping[str, Any],
    agents: Sequence[str] | None = None,
    method: str | None = None,
    settings: Sequence[str] | None = None,
    weights: Sequence[str] | None = None,
) -> Recipe:
    """The recipe of a file, of options, or of a file that options change.

    Args:
        file: YAML.
        values: by path, such as "output.dtype"; each replaces the file's, None was not given.
        agents: "name=source" each; replace the file's agents when given.
        method: a name; replaces the file's method and its settings.
        settings: "field=value" each; replace single settings of the method. "then.field" is one of its inner method. A
            list or a mapping is written as in YAML or JSON.
        weights: "name=number" each; replace the weights of single agents.

    Raises:
        RecipeError: with the path of what is wrong.
    """
    data = read_recipe(file) if file is not None else {}
    if not isinstance(data, dict):
        raise RecipeError(
            f"{file}: expected a mapping with base, agents and method, found {shown(data)}.",
            where=Where(path=str(file)),
        )
    if file is None and (values.get("base") is None or not agents):
        raise RecipeError("Nothing to merge: give a recipe file, or --base SOURCE and --agent NAME=SOURCE.")
    if agents:
        data["agents"] = pairs(agents, "--agent", "NAME=SOURCE")
    given: dict[str, Any] = {path: _value(text) for path, text in pairs(settings or (), "--set", "FIELD=VALUE").items()}
    inner = {path: given.pop(path) for path in list(given) if "." in path}
    chosen = method or data.get("method", METHOD)
    chosen = {"name": chosen} if isinstance(chosen, str) else chosen
    if isinstance(chosen, dict):
        chosen = {**chosen, **given}
    data["method"] = chosen
    for path, value in values.items():
        if value is not None:
            _put(data, path, value)
    for name, weight in pairs(weights or (), "--weight", "NAME=NUMBER").items():
        _weigh(data.get("agents"), name, weight)
    recipe = Recipe.parse(data, str(file) if file is not None else "options", file)
    return recipe.with_method(inner) if inner else recipe


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[str]]:
    """The fields and the values of "rescale=0,0.1,0.2" and others like it.

    Raises:
        RecipeError: one has another form, or a value or a field stands twice.
    """
    fields: dict[str, list[str]] = {}
    for text in texts:
        field, found, rest = text.partition("=")
        values = split_apart(rest)
        if not (found and field and all(values)) or len(set(values)) < len(values):
            form = "expected FIELD=V1,V2,... with different values."
            raise RecipeError(f"--sweep {text}: {form}", where=Where(path="--sweep"))
        if field in fields:
            twice = f"--sweep {text}: '{field}' is swept twice"
            raise RecipeError(twice, todo="Give all of its values in one --sweep.", where=Where(path="--sweep"))
        fields[field] = values
    return fields


def _value(text: str) -> Any:
    """A list or a mapping as YAML and JSON have it; every other text as it is, for the field's own check to read."""
    if (text[0], text[-1]) not in (("[", "]"), ("{", "}")):
        return text
    try:
        return parse_core_yaml(text)
    except ValueError:
        return text


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a field; a section that is no mapping stays, for the recipe's own check to complain of."""
    section, _, name = path.rpartition(".")
    if not section:
        data[name] = value
        return
    found = data.get(section) or {}
    if isinstance(found, dict):
        data[section] = {**found, name: value}


def _weigh(agents: Any, name: str, weight: str) -> None:
    """Set an agent's weight; agents that are no mapping stay, for the recipe's own check to complain of.

    Raises:
        RecipeError: no agent has this name.
    """
    if not isinstance(agents, dict):
        return
    if name not in agents:
        hint = did_you_mean(name, map(str, agents)).strip()
        raise RecipeError(f"--weight {name}={weight}: no agent '{name}'", todo=hint, where=Where(path="--weight"))
    agent = agents[name]
    agents[name] = {**(agent if isinstance(agent, dict) else {"source": agent}), "weight": weight}


def pairs(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    """What options of one form say, by name.

    Raises:
        RecipeError: one has another form, or a name stands twice.
    """
    found_by_name: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not (found and name and value):
            raise RecipeError(f"{option} {text}: expected {form}.", where=Where(path=option))
        if name in found_by_name:
            raise RecipeError(f"{option} {text}: '{name}' is given twice.", where=Where(path=option))
        found_by_name[name] = value
    return found_by_name
