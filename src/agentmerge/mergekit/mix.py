"""How mergekit merges one tensor, as values: every model's weight, and settings by the names of our methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.parameters import Problems

Settings = dict[str, Any]
"""Of our method, by its own names; a density is a number, or one for each model."""


@dataclass(frozen=True)
class Mix:
    """How one tensor is merged."""

    weights: dict[str, float]
    """By model, the base left out, and so is a model that lacks one."""
    settings: Settings
    """"scale" multiplies the weighted task vectors."""


def weights_of(config: MergekitConfig, tensor: str, problems: Problems) -> dict[str, float]:
    """By model, 0 where it takes no part; one that lacks a weight is told and left out."""
    weights = {}
    for model in config.models:
        entry = config.entry_of(model, tensor)
        found = config.value("weight", tensor, model) if entry else 0.0
        if found is not None:
            weights[model] = found
        elif entry is not None:
            why = f"{config.method} needs a weight for every model and tensor."
            problems.refuse(f"{entry.where}.parameters.weight", f"nothing for {model}", why, todo="Add one.")
    return weights


def ones_of(config: MergekitConfig, tensor: str) -> dict[str, float]:
    """1 of every model that takes part in a tensor, 0 of the others."""
    return {model: float(config.entry_of(model, tensor) is not None) for model in config.models}


def densities_of(config: MergekitConfig, tensor: str, problems: Problems) -> dict[str, float]:
    """By model, 1 where it is not said; one that would keep nothing is told and counts as 1."""
    densities = {}
    for model in config.models:
        found = config.found("density", tensor, model)
        densities[model] = 1.0 if found is None else min(found.value, 1.0)
        if found is not None and found.value <= 0:
            nearest = "weight 0, which leaves the base"
            problems.refuse(found.where, f"{found.value:g}", "nothing would be kept.", nearest=nearest)
            densities[model] = 1.0
    return densities


def one_or_each(densities: dict[str, float], weights: dict[str, float]) -> float | dict[str, float]:
    """The density that all agents with a weight share; else that of every agent."""
    shared = {densities[model] for model, weight in weights.items() if weight}
    return densities if len(shared) > 1 else next(iter(shared), 1.0)


def scale_of(config: MergekitConfig, tensor: str) -> float:
    """Lambda."""
    return value_or(config.value("lambda", tensor), 1.0)


def normalize_of(config: MergekitConfig, tensor: str, *, default: bool) -> float:
    """1 where the agents that agree are averaged, 0 where they are added; a setting is a number here."""
    found = config.value("normalize", tensor)
    return float(default if found is None else bool(found))


def value_or(value: float | None, default: float) -> float:
    """The value where there is one."""
    return default if value is None else value


def place_of(config: MergekitConfig, name: str, tensor: str) -> str:
    """The path of the setting that gives a parameter; that of the top where several do."""
    models = [None] if name == "normalize" else [config.base, *config.models]
    places = {found.where for model in models if (found := config.found(name, tensor, model))}
    return next(iter(places)) if len(places) == 1 else f"parameters.{name}"


def shares_of(config: MergekitConfig, tensor: str, name: str, default: float, problems: Problems) -> dict[str, float]:
    """A share of every model, 0 to below 1, `default` where it is not said; another one is told and counts as that."""
    shares = {}
    for model in config.models:
        found = config.found(name, tensor, model)
        shares[model] = default if found is None else found.value
        if found is not None and not 0 <= found.value < 1:
            problems.refuse(found.where, f"{found.value:g}", expected="a share of 0 or more, below 1")
            shares[model] = default
    return shares


def whole_group(config: MergekitConfig, weights: dict[str, float], tensor: str, problems: Problems) -> None:
    """Refuse a tensor to which a model adds nothing, where a method counts the models or takes their angles."""
    if 0 < sum(map(bool, weights.values())) < len(weights):
        problems.refuse(
            place_of(config, "weight", tensor),
            f"nothing of {', '.join(model for model, weight in weights.items() if not weight)} in some tensors",
            f"{config.method} counts every agent here, also one that is skipped.",
            nearest="a weight other than 0 for every model and tensor",
        )
