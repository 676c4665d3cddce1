"""The recipe that says the same as a mergekit file, and what is different or was left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import yaml

from agentmerge.errors import RecipeError, Where
from agentmerge.mergekit.document import read_document
from agentmerge.mergekit.local import layers_of
from agentmerge.mergekit.methods import EQUAL, shaped
from agentmerge.mergekit.outputs import read_outputs
from agentmerge.mergekit.parameters import Problems
from agentmerge.mergekit.reading import read_config
from agentmerge.mergekit.rules import translation_of
from agentmerge.recipe import Recipe
from agentmerge.sources.hub import hub_id, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agentmerge.errors import Note
    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.rules import TensorRule, Translation

LONGEST = 64
"""Characters of an agent's name."""
WIDTH = 110
"""Columns of the YAML."""


@dataclass(frozen=True)
class Conversion:
    """A recipe of ours as plain data, and what is different or was left out."""

    source: str
    data: dict[str, Any]
    notes: tuple[Note, ...]
    downloads: tuple[str, ...] = ()
    """The commands that fetch its sources from the hub, to where they are looked for."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes as texts."""
        return tuple(map(str, self.notes))

    def yaml(self) -> str:
        """The recipe as YAML, the warnings as comments at its top."""
        lines = [f"# Converted from {self.source} by `agentmerge convert`."]
        for warning in self.warnings:
            lines += wrap(warning, WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False)
        if self.downloads:
            lines += [
                "# A merge fetches its sources from the hub. To have them in folders of their own, where you merge:",
                *(f"#   {line}" for line in self.downloads),
            ]
        blocks = [_dumped({key: value}, flow=key in ("method", "rules")) for key, value in self.data.items()]
        return "\n".join(lines) + "\n" + "".join(blocks)


def convert_mergekit(path: Path, layers: int | None = None) -> Conversion:
    """Read a mergekit configuration and say the same as a recipe.

    Args:
        path: a YAML file.
        layers: how many layers the models have; None: from `slices`, or from the config.json of a model that lies here.

    Raises:
        RecipeError: the file has no equal here; every problem on a line of its own.
    """
    data, problems = read_document(path), Problems(str(path))
    config = read_config(data, problems, layers_of, layers)
    names = {} if config is None else agent_names(config.models)
    sections = read_outputs(data, config, names, problems)
    translation = translation_of(config, problems) if config is not None and config.method else None
    problems.stop()
    if config is None or translation is None:
        raise RecipeError(f"{path}: no merge is left", where=Where(source=str(path)))
    recipe = _recipe(config, translation, names) | sections
    Recipe.parse(recipe, f"{path}, converted")
    return Conversion(path.name, recipe, tuple(problems.notes), _downloads(config))


def _recipe(config: MergekitConfig, translation: Translation, names: Mapping[str, str]) -> dict[str, Any]:
    weights, settings, rules = translation.weights, translation.settings, translation.rules
    mean = config.method == "linear" and not rules and abs(settings["scale"] * sum(weights.values()) - 1) < 1e-9
    agents = {names[m]: m if w == 1 else {"source": m, "weight": w} for m, w in weights.items()}
    method = {"name": "linear"} if mean else {**EQUAL[config.method], **shaped(config.method, settings, names)}
    recipe: dict[str, Any] = {"base": config.base, "agents": agents, "method": method}
    if rules:
        recipe["rules"] = [_rule(config.method, rule, names) for rule in rules]
    return recipe


def _rule(method: str, rule: TensorRule, names: Mapping[str, str]) -> dict[str, Any]:
    if rule.base:
        return {"tensors": rule.glob, "take": "base"}
    skipped = {} if rule.skip is None else {"skip": sorted(names[model] for model in rule.skip)}
    return {"tensors": rule.glob, **shaped(method, rule.settings, names, rule=True), **skipped}


def _downloads(config: MergekitConfig) -> tuple[str, ...]:
    """The commands that fetch what is no folder here, to where it is looked for."""
    found = (hub_id(model) for model in (config.base, *config.models) if not local_path(model).exists())
    return tuple(dict.fromkeys(model.command for model in found if model is not None))


def _dumped(data: dict[str, Any], *, flow: bool) -> str:
    style = None if flow else False
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=style, width=WIDTH, allow_unicode=True)


def agent_names(sources: Iterable[str]) -> dict[str, str]:
    """A valid name of its own for every source, from the last part of its path."""
    names: dict[str, str] = {}
    for source in sources:
        found = hub_id(source)
        named = found.name if found else re.sub(r"@[^@/\\]*$", "", source)
        last = re.split(r"[\\/]", named.rstrip("/\\"))[-1]
        plain = re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9_.+-]+", "-", last))[:LONGEST] or "agent"
        taken, name, number = {"base", *names.values()}, plain, 2
        while name in taken:
            end = f"-{number}"
            name, number = plain[: LONGEST - len(end)] + end, number + 1
        names[source] = name
    return names
