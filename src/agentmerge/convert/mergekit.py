"""From a mergekit configuration to a recipe of ours, and what was said on the way. Knows no files but the one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import yaml

from agentmerge.convert.findings import Findings
from agentmerge.convert.names import agent_names
from agentmerge.convert.outputs import read_outputs
from agentmerge.convert.reading import read_config
from agentmerge.convert.rules import plan
from agentmerge.recipe import Recipe, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.convert.config import MergekitConfig
    from agentmerge.convert.rules import Planned
    from agentmerge.convert.ruleset import Rule

WIDTH = 110
"""Columns of the YAML."""


@dataclass(frozen=True)
class Conversion:
    """A recipe of ours as plain data, and what is different or was left out."""

    source: str
    data: dict[str, Any]
    warnings: tuple[str, ...]

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
        RecipeError: the file has no equal here; every reason on a line of its own.
    """
    data, findings = read_yaml(path), Findings(str(path))
    base = data.get("base_model") if isinstance(data, dict) else None
    config = read_config(data, findings, layers or layers_of(base))
    names = agent_names(config.models)
    sections = read_outputs(data, config, names, findings)
    recipe = _recipe(config, plan(config, findings), names, findings) | sections
    Recipe.parse(recipe, f"{path}, converted")
    return Conversion(path.name, recipe, tuple(findings.warnings))


def layers_of(base: Any) -> int | None:
    """The number of layers in the config.json of a local checkpoint; None where there is none."""
    try:
        config = json.loads((Path(base) / "config.json").read_text(encoding="utf-8"))
        found = config.get("num_hidden_layers", config.get("text_config", {}).get("num_hidden_layers"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return found if type(found) is int and found > 0 else None


def _recipe(config: MergekitConfig, planned: Planned, names: Mapping[str, str], findings: Findings) -> dict[str, Any]:
    weights, rules = planned.weights, planned.rules
    mean = config.method == "linear" and not rules and abs(planned.settings["scale"] * sum(weights.values()) - 1) < 1e-9
    for note in () if mean else NOTES.get(config.method, ()):
        findings.warn(f"{config.method}: {note}")
    agents = {names[m]: m if w == 1 else {"source": m, "weight": w} for m, w in weights.items()}
    method = {"name": "linear"} if mean else {**_FIXED[config.method], **shaped(config.method, planned.settings)}
    recipe: dict[str, Any] = {"base": config.base, "agents": agents, "method": method}
    if rules:
        recipe["rules"] = [_rule(config.method, rule, names) for rule in rules]
    return recipe


def _rule(method: str, rule: Rule, names: Mapping[str, str]) -> dict[str, Any]:
    if rule.base:
        return {"tensors": rule.glob, "take": "base"}
    skipped = {"skip": sorted(names[model] for model in rule.skip)} if rule.skip else {}
    return {"tensors": rule.glob, **shaped(method, rule.settings), **skipped}


_FIXED: dict[str, dict[str, Any]] = {
    "linear": {"name": "task_arithmetic"},
    "task_arithmetic": {"name": "task_arithmetic"},
    "ties": {"name": "ties", "scope": "tensor", "zero_sign": "plus"},
    "dare_linear": {"name": "dare"},
    "dare_ties": {"name": "dare"},
    "ram": {"name": "ram"},
    "ramplus_tl": {"name": "ram_plus", "scope": "tensor"},
}
_INNER: dict[str, dict[str, Any]] = {
    "dare_linear": {"name": "task_arithmetic"},
    "dare_ties": {"name": "ties", "density": 1.0, "zero_sign": "plus"},
}
_DRAWN = "the elements to drop are drawn by another generator, addressed by `seed`"
_RESCALED = "kept elements are divided by density, as the paper does; mergekit scales each tensor to its old magnitude"
NOTES = {
    "ties": ("one or two elements more of each tensor are kept, and all that equal the last of them in magnitude",),
    "dare_linear": (_DRAWN, _RESCALED),
    "dare_ties": (_DRAWN, _RESCALED),
}
"""What differs from mergekit in a method that is otherwise the same."""


def shaped(method: str, settings: dict[str, float]) -> dict[str, Any]:
    """Settings where our method has them: those of an inner method under `then`, which a rule replaces whole."""
    values: dict[str, Any] = dict(settings)
    if "normalize" in values:
        values["normalize"] = bool(values["normalize"])
    if method not in _INNER or "scale" not in values:
        return values
    inner = {name: values.pop(name) for name in ("scale", "normalize") if name in values}
    return {**values, "then": {**_INNER[method], **inner}}


def _dumped(data: dict[str, Any], *, flow: bool) -> str:
    style = None if flow else False
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=style, width=WIDTH, allow_unicode=True)
