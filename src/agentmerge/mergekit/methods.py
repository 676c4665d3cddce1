"""mergekit's methods: which have an equal here, what each does with one tensor, and what it is called here.

linear           sum of w M / sum of w, over all models            = base + scale * sum of w tau, scale 1 / sum of w
task_arithmetic  base + lambda * sum of w tau                      [/ sum of w, with normalize]
ties             base + lambda * disjoint mean of trimmed w tau    [without normalize: the sum]
dare_*           the same on dropped task vectors, kept elements / density unless rescale is false
ram, ramplus_tl  no weights
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

from agentmerge.errors import did_you_mean
from agentmerge.mergekit.parameters import READ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.parameters import Problems

METHODS = tuple(READ)
"""mergekit's methods that have an equal here."""

NEAREST_METHOD = {
    "slerp": "`linear` with weights 1 - t and t, which is the same for models that are close",
    "nuslerp": "`linear`, which is the same for models that are close",
    "multislerp": "`linear`, which is the same for models that are close",
    "karcher": "`linear`, which is the same for models that are close",
    "della": "`dare` with then: ties, which keeps each element with one probability instead of one by rank",
    "della_linear": "`dare` with then: task_arithmetic, which keeps each element with one probability",
    "breadcrumbs": "`task_arithmetic`; nothing here removes the largest changes",
    "breadcrumbs_ties": "`ties`; nothing here removes the largest changes",
    "model_stock": "`linear` with a weight of your own for each agent",
    "sce": "`ties`, which elects signs too, with a weight of your own for each agent",
    "nearswap": "`linear`",
    "arcee_fusion": "`ties` with a small density, or `ram`",
    "passthrough": "a rule with `take`, which copies tensors from the base or from one agent",
}
"""mergekit's methods that are not here, and what comes nearest."""

LINEAR_BASE = (
    "linear: the base has no weight, so it is the agents' common ancestor and nothing else; mergekit 0.1.5 stops here"
)

Settings = dict[str, Any]
"""Of our method, by its own names; a density is a number, or one for each model."""


@dataclass(frozen=True)
class Mix:
    """How one tensor is merged."""

    weights: dict[str, float]
    """By model, the base left out, and so is a model that lacks one."""
    settings: Settings
    """"scale" multiplies the weighted task vectors."""


def read_method(data: Mapping[str, Any], problems: Problems) -> str:
    """The method that a configuration names; "", and told, where it has no equal here."""
    method = data.get("merge_method")
    if method is None:
        problems.lack("merge_method", "Is this a mergekit configuration?")
        return ""
    if method in METHODS:
        return str(method)
    nearest = NEAREST_METHOD.get(str(method), "")
    why = "this method is not here." if nearest else "no method of that name."
    hint = did_you_mean(str(method), METHODS).strip()
    problems.refuse("merge_method", method, why, todo=hint, nearest=nearest)
    return ""


def mix(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    """How mergekit merges a tensor of this name."""
    return _MIXES[config.method](config, tensor, problems)


def _linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = _weights(config, tensor, problems)
    own = config.value("weight", tensor, config.base)
    if own is None and not config.base_given:
        first = config.slices[0].models[0].where
        why = "linear needs a weight for every model."
        problems.refuse(f"{first}.parameters.weight", f"nothing for {config.base}", why, todo="Add one.")
    elif own is None:
        problems.note(LINEAR_BASE)
    total = sum(weights.values()) + (own or 0.0)
    if _or(config.value("normalize", tensor), 1.0):
        if total == 0:
            problems.refuse(_where(config, "weight", tensor), "0 in all", "the weights of a mean can't add up to 0.")
        return Mix(weights, {"scale": 1 / (total or 1.0)})
    if not isclose(total, 1, rel_tol=1e-9):
        problems.refuse(
            _where(config, "normalize", tensor),
            f"false and weights that add up to {total:g}",
            "the base itself would be multiplied by that sum.",
            nearest="normalize: true, or weights that add up to 1",
        )
    return Mix(weights, {"scale": 1.0})


def _where(config: MergekitConfig, name: str, tensor: str) -> str:
    """The path of the setting that gives a parameter; that of the top where several do."""
    models = [None] if name == "normalize" else [config.base, *config.models]
    places = {found.where for model in models if (found := config.found(name, tensor, model))}
    return next(iter(places)) if len(places) == 1 else f"parameters.{name}"


def _task_arithmetic(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = _weights(config, tensor, problems)
    total = sum(weights.values())
    divisor = total if config.value("normalize", tensor) and abs(total) >= 1e-8 else 1.0
    return Mix(weights, {"scale": _scale(config, tensor) / divisor})


def _ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = _weights(config, tensor, problems)
    densities = _densities(config, tensor, problems)
    trims = min(densities.values(), default=1.0) < 1
    if trims:
        problems.note(f"ties: {KEPT}")
    rescale = config.found("rescale", tensor)
    if rescale and rescale.value and trims:
        why = "`ties` does not rescale what it keeps."
        nearest = "rescale: false and a lambda of your choice, which is `scale`"
        problems.refuse(rescale.where, "true", why, nearest=nearest)
    normalize = _normalize(config, tensor, default=True)
    density = _one_or_each(densities, weights)
    return Mix(weights, {"density": density, "scale": _scale(config, tensor), "normalize": normalize})


def _dare_linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    inner = _task_arithmetic(config, tensor, problems)
    return _dropped(config, tensor, inner, problems)


def _dare_ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    normalize = _normalize(config, tensor, default=False)
    inner = Mix(_weights(config, tensor, problems), {"scale": _scale(config, tensor), "normalize": normalize})
    return _dropped(config, tensor, inner, problems)


def _dropped(config: MergekitConfig, tensor: str, inner: Mix, problems: Problems) -> Mix:
    """Drop before the inner merge, which is linear in a factor of all its agents, and where it adds in one of each.

    `scale`, or the weights, take back a rescale that mergekit leaves out.
    """
    densities = _densities(config, tensor, problems)
    density, rescale = _one_or_each(densities, inner.weights), config.found("rescale", tensor)
    if min(densities.values(), default=1.0) < 1:
        problems.note(f"{config.method}: {DRAWN}")
    if rescale is None or rescale.value:
        if min(densities.values(), default=1.0) < 1:
            problems.note(f"{config.method}: {RESCALED}")
        return Mix(inner.weights, {**inner.settings, "density": density})
    if not isinstance(density, dict):
        return Mix(inner.weights, {**inner.settings, "density": density, "scale": inner.settings["scale"] * density})
    if inner.settings.get("normalize"):
        why = "the mean of the agents that agree would weigh them by their densities."
        nearest = "one density for every model, or normalize: false"
        problems.refuse(rescale.where, "false beside several densities and normalize", why, nearest=nearest)
    weights = {model: weight * densities[model] for model, weight in inner.weights.items()}
    return Mix(weights, {**inner.settings, "density": density})


def _ram(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    return Mix(_ones(config, tensor), {"threshold": _or(config.value("epsilon", tensor), 1e-5)})


def _ramplus_tl(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    values = {name: _or(config.value(theirs, tensor), default) for name, theirs, default in _RAMPLUS_TL}
    return Mix(_ones(config, tensor), values)


_RAMPLUS_TL = (("threshold", "epsilon", 1e-5), ("rescale", "r", 0.1), ("clip", "alpha", 0.2))

_MIXES: dict[str, Callable[[MergekitConfig, str, Problems], Mix]] = {
    "linear": _linear,
    "task_arithmetic": _task_arithmetic,
    "ties": _ties,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "ram": _ram,
    "ramplus_tl": _ramplus_tl,
}


def _weights(config: MergekitConfig, tensor: str, problems: Problems) -> dict[str, float]:
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


def _ones(config: MergekitConfig, tensor: str) -> dict[str, float]:
    return {model: float(config.entry_of(model, tensor) is not None) for model in config.models}


def _densities(config: MergekitConfig, tensor: str, problems: Problems) -> dict[str, float]:
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


def _one_or_each(densities: dict[str, float], weights: dict[str, float]) -> float | dict[str, float]:
    """The density that all agents with a weight share; else that of every agent."""
    shared = {densities[model] for model, weight in weights.items() if weight}
    return densities if len(shared) > 1 else next(iter(shared), 1.0)


def _scale(config: MergekitConfig, tensor: str) -> float:
    return _or(config.value("lambda", tensor), 1.0)


def _normalize(config: MergekitConfig, tensor: str, *, default: bool) -> float:
    """1 where the agents that agree are averaged, 0 where they are added; a setting is a number here."""
    found = config.value("normalize", tensor)
    return float(default if found is None else bool(found))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


EQUAL: dict[str, dict[str, Any]] = {
    "linear": {"name": "task_arithmetic"},
    "task_arithmetic": {"name": "task_arithmetic"},
    "ties": {"name": "ties", "scope": "tensor", "zero_sign": "plus"},
    "dare_linear": {"name": "dare"},
    "dare_ties": {"name": "dare"},
    "ram": {"name": "ram"},
    "ramplus_tl": {"name": "ram_plus", "scope": "tensor"},
}
"""By mergekit's method: ours, with the settings that make it the same."""

_INNER: dict[str, dict[str, Any]] = {
    "dare_linear": {"name": "task_arithmetic"},
    "dare_ties": {"name": "ties", "density": 1.0, "zero_sign": "plus"},
}
KEPT = (
    "all elements that are as large as the smallest kept one stay, too, where mergekit keeps some of them; of agents "
    "in bfloat16 that is from a few elements to percents of a tensor, and one or two more by counting"
)
DRAWN = "the elements to drop are drawn by another generator, addressed by `seed`"
RESCALED = "kept elements are divided by density, as the paper does; mergekit scales each tensor to its old magnitude"


def shaped(method: str, settings: Settings, names: Mapping[str, str], *, rule: bool = False) -> dict[str, Any]:
    """Settings where our method has them.

    Args:
        method: mergekit's.
        settings: of ours.
        names: of the agents, by model.
        rule: whether they stand in a rule, which keeps what it does not name of an inner method.
    """
    values = dict(settings)
    if "normalize" in values:
        values["normalize"] = bool(values["normalize"])
    if isinstance(values.get("density"), dict):
        values["density"] = {names[model]: density for model, density in values["density"].items()}
    if method not in _INNER:
        return values
    inner = {name: values.pop(name) for name in ("scale", "normalize") if name in values}
    if rule:
        return {**values, "then": inner} if inner else values
    return {"density": values.pop("density", 1.0), **values, "then": {**_INNER[method], **inner}}
