"""What each of mergekit's methods does with one tensor, as weights per agent and settings. Knows no recipes.

linear           sum of w M / sum of w, over all models            = base + scale * sum of w tau, scale 1 / sum of w
task_arithmetic  base + lambda * sum of w tau                      [/ sum of w, with normalize]
ties             base + lambda * disjoint mean of trimmed w tau    [without normalize: the sum]
dare_*           the same on dropped task vectors, kept elements / density unless rescale is false
ram, ramplus_tl  no weights
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.convert.config import MergekitConfig
    from agentmerge.convert.findings import Findings


@dataclass(frozen=True)
class Mix:
    """How one tensor is merged."""

    weights: dict[str, float]
    """By model, the base left out."""
    settings: dict[str, float]
    """Of our method, by its own names; "scale" multiplies the weighted task vectors."""


def mix(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    """How mergekit merges a tensor of this name."""
    return _MIXES[config.method](config, tensor, findings)


def _linear(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    weights = _weights(config, tensor, findings)
    own = config.value("weight", tensor, config.base)
    if own is None and not config.base_given:
        findings.refuse("parameters.weight", f"nothing for {config.base}", "linear needs a weight for every model.")
    elif own is None:
        findings.warn("linear: the base has no weight, so it is the agents' common ancestor and nothing else")
    total = sum(weights.values()) + (own or 0.0)
    if _or(config.value("normalize", tensor), 1.0):
        if total == 0:
            findings.refuse("parameters.weight", "0 in all", "the weights of a mean can't add up to 0.")
        return Mix(weights, {"scale": 1 / (total or 1.0)})
    if not isclose(total, 1, rel_tol=1e-9):
        findings.refuse(
            "parameters.normalize",
            f"false and weights that add up to {total:g}",
            "the base itself would be multiplied by that sum.",
            "normalize: true, or weights that add up to 1",
        )
    return Mix(weights, {"scale": 1.0})


def _task_arithmetic(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    weights = _weights(config, tensor, findings)
    total = sum(weights.values())
    divisor = total if config.value("normalize", tensor) and abs(total) >= 1e-8 else 1.0
    return Mix(weights, {"scale": _scale(config, tensor) / divisor})


def _ties(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    weights = _weights(config, tensor, findings)
    density = _density(config, tensor, weights, findings)
    if config.value("rescale", tensor) and density < 1:
        why = "`ties` does not rescale what it keeps."
        findings.refuse(
            "parameters.rescale", "true", why, "rescale: false and a lambda of your choice, which is `scale`"
        )
    normalize = _normalize(config, tensor, default=True)
    return Mix(weights, {"density": density, "scale": _scale(config, tensor), "normalize": normalize})


def _dare_linear(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    inner = _task_arithmetic(config, tensor, findings)
    return _dropped(config, tensor, inner.weights, inner.settings["scale"], findings)


def _dare_ties(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    found = _dropped(config, tensor, _weights(config, tensor, findings), _scale(config, tensor), findings)
    return Mix(found.weights, {**found.settings, "normalize": _normalize(config, tensor, default=False)})


def _dropped(config: MergekitConfig, tensor: str, weights: dict[str, float], scale: float, findings: Findings) -> Mix:
    """Both inner methods are linear in a common factor: `scale` takes back a rescale that mergekit leaves out."""
    density = _density(config, tensor, weights, findings)
    kept = density if config.value("rescale", tensor) == 0 else 1.0
    return Mix(weights, {"density": density, "scale": scale * kept})


def _ram(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    return Mix(_ones(config, tensor), {"threshold": _or(config.value("epsilon", tensor), 1e-5)})


def _ramplus_tl(config: MergekitConfig, tensor: str, findings: Findings) -> Mix:
    values = {name: _or(config.value(theirs, tensor), default) for name, theirs, default in _RAMPLUS_TL}
    return Mix(_ones(config, tensor), values)


_RAMPLUS_TL = (("threshold", "epsilon", 1e-5), ("rescale", "r", 0.1), ("clip", "alpha", 0.2))

_MIXES: dict[str, Callable[[MergekitConfig, str, Findings], Mix]] = {
    "linear": _linear,
    "task_arithmetic": _task_arithmetic,
    "ties": _ties,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "ram": _ram,
    "ramplus_tl": _ramplus_tl,
}


def _weights(config: MergekitConfig, tensor: str, findings: Findings) -> dict[str, float]:
    weights = {}
    for model in config.models:
        found = config.value("weight", tensor, model) if config.takes_part(model, tensor) else 0.0
        if found is None:
            why = f"{config.method} needs a weight for every model and tensor. Add one."
            findings.refuse("parameters.weight", f"nothing for {model}", why)
        weights[model] = found or 0.0
    return weights


def _ones(config: MergekitConfig, tensor: str) -> dict[str, float]:
    return {model: float(config.takes_part(model, tensor)) for model in config.models}


def _density(config: MergekitConfig, tensor: str, weights: dict[str, float], findings: Findings) -> float:
    found = {model: _or(config.value("density", tensor, model), 1.0) for model, weight in weights.items() if weight}
    density = min(next(iter(found.values()), 1.0), 1.0)
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{model} {value:g}" for model, value in found.items())
        why = "all agents have one density here; it may differ from tensor to tensor only."
        findings.refuse("parameters.density", shown, why, "the same density for every model")
    if density <= 0:
        findings.refuse(
            "parameters.density", f"{density:g}", "nothing would be kept.", "weight 0, which leaves the base"
        )
        return 1.0
    return density


def _scale(config: MergekitConfig, tensor: str) -> float:
    return _or(config.value("lambda", tensor), 1.0)


def _normalize(config: MergekitConfig, tensor: str, *, default: bool) -> float:
    """1 where the agents that agree are averaged, 0 where they are added; a setting is a number here."""
    found = config.value("normalize", tensor)
    return float(default if found is None else bool(found))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
