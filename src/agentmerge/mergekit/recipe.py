"""The recipe that says the same as a mergekit file, and what is different or was left out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import yaml

from agentmerge.mergekit.config import read_config
from agentmerge.mergekit.methods import DIFFERENT, EQUAL, shaped
from agentmerge.mergekit.parameters import Problems
from agentmerge.mergekit.rules import translation_of
from agentmerge.recipe import OUTPUT_DTYPES, Recipe, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes as texts."""
        return tuple(map(str, self.notes))

    def yaml(self) -> str:
        """The recipe as YAML, the warnings as comments at its top."""
        lines = [f"# Converted from {self.source} by `agentmerge convert`."]
        for warning in self.warnings:
            lines += wrap(warning, WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False)
        blocks = [_dumped({key: value}, flow=key in ("method", "rules")) for key, value in self.data.items()]
        return "\n".join(lines) + "\n" + "".join(blocks)


def convert_mergekit(path: Path, layers: int | None = None) -> Conversion:
    """Read a mergekit configuration and say the same as a recipe.

    Args:
        path: a YAML file.
        layers: how many layers the models have; None: from `slices`, or from the base's config.json where it is local.

    Raises:
        RecipeError: the file has no equal here; every problem on a line of its own.
    """
    data, problems = read_yaml(path), Problems(str(path))
    base = data.get("base_model") if isinstance(data, dict) else None
    config = read_config(data, problems, layers or layers_of(base))
    names = agent_names(config.models)
    sections = read_outputs(data, config, names, problems)
    recipe = _recipe(config, translation_of(config, problems), names, problems) | sections
    Recipe.parse(recipe, f"{path}, converted")
    return Conversion(path.name, recipe, tuple(problems.notes))


def layers_of(base: Any) -> int | None:
    """The number of layers in the config.json of a local checkpoint; None where there is none."""
    try:
        config = json.loads((Path(base) / "config.json").read_text(encoding="utf-8"))
        layers = config.get("num_hidden_layers", config.get("text_config", {}).get("num_hidden_layers"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return layers if type(layers) is int and layers > 0 else None


def _recipe(
    config: MergekitConfig, translation: Translation, names: Mapping[str, str], problems: Problems
) -> dict[str, Any]:
    weights, settings, rules = translation.weights, translation.settings, translation.rules
    mean = config.method == "linear" and not rules and abs(settings["scale"] * sum(weights.values()) - 1) < 1e-9
    for difference in () if mean else DIFFERENT.get(config.method, ()):
        problems.note(f"{config.method}: {difference}")
    agents = {names[m]: m if w == 1 else {"source": m, "weight": w} for m, w in weights.items()}
    method = {"name": "linear"} if mean else {**EQUAL[config.method], **shaped(config.method, settings)}
    recipe: dict[str, Any] = {"base": config.base, "agents": agents, "method": method}
    if rules:
        recipe["rules"] = [_rule(config.method, rule, names) for rule in rules]
    return recipe


def _rule(method: str, rule: TensorRule, names: Mapping[str, str]) -> dict[str, Any]:
    if rule.base:
        return {"tensors": rule.glob, "take": "base"}
    skipped = {} if rule.skip is None else {"skip": sorted(names[model] for model in rule.skip)}
    return {"tensors": rule.glob, **shaped(method, rule.settings), **skipped}


def _dumped(data: dict[str, Any], *, flow: bool) -> str:
    style = None if flow else False
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=style, width=WIDTH, allow_unicode=True)


def agent_names(sources: Iterable[str]) -> dict[str, str]:
    """A valid name of its own for every source, from the last part of its path."""
    names: dict[str, str] = {}
    for source in sources:
        last = re.split(r"[\\/]", re.sub(r"@[^@/\\]*$", "", source).rstrip("/\\"))[-1]
        plain = re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9_.+-]+", "-", last))[:LONGEST] or "agent"
        taken, name, number = {"base", *names.values()}, plain, 2
        while name in taken:
            end = f"-{number}"
            name, number = plain[: LONGEST - len(end)] + end, number + 1
        names[source] = name
    return names


def read_outputs(
    data: Mapping[str, Any], config: MergekitConfig, names: Mapping[str, str], problems: Problems
) -> dict[str, Any]:
    """The sections `inputs` and `output`, where they say something."""
    sections: dict[str, Any] = {}
    tokenizer = _tokenizer(data, config, names, problems)
    if tokenizer is not None:
        sections["inputs"] = {"tokenizer_from": tokenizer}
    dtype = _dtype(data, problems)
    if dtype is not None:
        sections["output"] = {"dtype": dtype}
    problems.stop()
    return sections


def _dtype(data: Mapping[str, Any], problems: Problems) -> str | None:
    for key in ("dtype", "out_dtype"):
        if data.get(key) is not None and data[key] not in OUTPUT_DTYPES:
            problems.refuse(key, data[key], expected=f"one of {', '.join(OUTPUT_DTYPES)}")
    if data.get("dtype") in ("bfloat16", "float16"):
        problems.note(
            f"dtype: mergekit also calculates in {data['dtype']}; here it is the output's, the arithmetic float32"
        )
    elif data.get("dtype") is not None and data.get("out_dtype") is not None:
        problems.note("dtype: left out; the arithmetic is always float32, and out_dtype says the output's")
    dtype = data.get("out_dtype") or data.get("dtype")
    return None if dtype is None else str(dtype)


def _tokenizer(
    data: Mapping[str, Any], config: MergekitConfig, names: Mapping[str, str], problems: Problems
) -> str | None:
    key, source = "tokenizer_source", data.get("tokenizer_source")
    if data.get("tokenizer") is not None:
        key, source = "tokenizer", _source_of(data["tokenizer"], data, problems)
    if source is None:
        return None
    nearest = "tokenizer_source: base, or one of the models"
    if source == "union":
        why = "vocabularies are not joined here; all agents must have the base's."
        problems.refuse(key, source, why, nearest=nearest)
        return None
    model = source.removeprefix("model:") if isinstance(source, str) else source
    if model == "base" or model == config.base:
        return "base"
    if model not in names:
        problems.refuse(key, source, "it is neither the base nor one of the agents.", nearest=nearest)
        return None
    return names[model]


def _source_of(tokenizer: Any, data: Mapping[str, Any], problems: Problems) -> Any:
    if not isinstance(tokenizer, dict):
        problems.refuse("tokenizer", tokenizer, expected="a mapping with source")
        return None
    if data.get("tokenizer_source") is not None:
        problems.refuse("tokenizer", tokenizer, "tokenizer_source stands beside it.", todo="Keep one of them.")
    for key, value in tokenizer.items():
        if key != "source" and value not in (None, {}, False):
            why = "embeddings are merged as they are, row by row, and the vocabulary stays the base's."
            problems.refuse(f"tokenizer.{key}", value, why, nearest="leave it out")
    return tokenizer.get("source", "union")
