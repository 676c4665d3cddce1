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

from agentmerge.errors import RecipeError, Where, did_you_mean
from agentmerge.mergekit.parameters import READ

if TYPE_CHECKING:
    from collections.abc import Callable

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

MIXTURE_KEYS = ("experts", "gate_mode", "experts_per_token", "shared_experts", "positive_prompts")
"""Keys of a mergekit-moe configuration."""


@dataclass(frozen=True)
class Mix:
    """How one tensor is merged."""

    weights: dict[str, float]
    """By model, the base left out."""
    settings: dict[str, float]
    """Of our method, by its own names; "scale" multiplies the weighted task vectors."""


def read_method(data: Any, problems: Problems) -> str:
    """The method that a configuration names.

    Raises:
        RecipeError: it has no equal here, or the data are no such configuration.
    """
    file = problems.file
    if not isinstance(data, dict):
        expected = "a mergekit configuration with merge_method"
        raise RecipeError(f"{file}: expected {expected}, found {data!r:.80}.", where=Where(source=file))
    for key in MIXTURE_KEYS:
        if key in data:
            why = "it builds a mixture of experts, which is not here."
            problems.refuse(key, data[key], why, nearest="merge the agents instead")
            problems.stop()
    method = data.get("merge_method")
    if method is None:
        missing = f"{file}: merge_method: missing."
        raise RecipeError(missing, todo="Is this a mergekit configuration?", where=Where(source=file))
    if method not in METHODS:
        nearest = NEAREST_METHOD.get(str(method), "")
        why = "this method is not here." if nearest else "no method of that name."
        hint = did_you_mean(str(method), METHODS).strip()
        problems.refuse("merge_method", method, why, todo=hint, nearest=nearest)
        problems.stop()
    return str(method)


def mix(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    """How mergekit merges a tensor of this name."""
    return _MIXES[config.method](config, tensor, problems)


def _linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = _weights(config, tensor, problems)
    own = config.value("weight", tensor, config.base)
    if own is None and not config.base_given:
        problems.refuse("parameters.weight", f"nothing for {config.base}", "linear needs a weight for every model.")
    elif own is None:
        problems.note("linear: the base has no weight, so it is the agents' common ancestor and nothing else")
    total = sum(weights.values()) + (own or 0.0)
    if _or(config.value("normalize", tensor), 1.0):
        if total == 0:
            problems.refuse("parameters.weight", "0 in all", "the weights of a mean can't add up to 0.")
        return Mix(weights, {"scale": 1 / (total or 1.0)})
    if not isclose(total, 1, rel_tol=1e-9):
        problems.refuse(
            "parameters.normalize",
            f"false and weights that add up to {total:g}",
            "the base itself would be multiplied by that sum.",
            nearest="normalize: true, or weights that add up to 1",
        )
    return Mix(weights, {"scale": 1.0})


def _task_arithmetic(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = _weights(config, tensor, problems)
    total = sum(weights.values())
    divisor = total if config.value("normalize", tensor) and abs(total) >= 1e-8 else 1.0
    return Mix(weights, {"scale": _scale(config, tensor) / divisor})


def _ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = _weights(config, tensor, problems)
    density = _density(config, tensor, weights, problems)
    if config.value("rescale", tensor) and density < 1:
        why = "`ties` does not rescale what it keeps."
        nearest = "rescale: false and a lambda of your choice, which is `scale`"
        problems.refuse("parameters.rescale", "true", why, nearest=nearest)
    normalize = _normalize(config, tensor, default=True)
    return Mix(weights, {"density": density, "scale": _scale(config, tensor), "normalize": normalize})


def _dare_linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    inner = _task_arithmetic(config, tensor, problems)
    return _dropped(config, tensor, inner.weights, inner.settings["scale"], problems)


def _dare_ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    found = _dropped(config, tensor, _weights(config, tensor, problems), _scale(config, tensor), problems)
    return Mix(found.weights, {**found.settings, "normalize": _normalize(config, tensor, default=False)})


def _dropped(config: MergekitConfig, tensor: str, weights: dict[str, float], scale: float, problems: Problems) -> Mix:
    """Both inner methods are linear in a common factor: `scale` takes back a rescale that mergekit leaves out."""
    density = _density(config, tensor, weights, problems)
    kept = density if config.value("rescale", tensor) == 0 else 1.0
    return Mix(weights, {"density": density, "scale": scale * kept})


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
    weights = {}
    for model in config.models:
        found = config.value("weight", tensor, model) if config.takes_part(model, tensor) else 0.0
        if found is None:
            why = f"{config.method} needs a weight for every model and tensor."
            problems.refuse("parameters.weight", f"nothing for {model}", why, todo="Add one.")
        weights[model] = found or 0.0
    return weights


def _ones(config: MergekitConfig, tensor: str) -> dict[str, float]:
    return {model: float(config.takes_part(model, tensor)) for model in config.models}


def _density(config: MergekitConfig, tensor: str, weights: dict[str, float], problems: Problems) -> float:
    found = {model: _or(config.value("density", tensor, model), 1.0) for model, weight in weights.items() if weight}
    density = min(next(iter(found.values()), 1.0), 1.0)
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{model} {value:g}" for model, value in found.items())
        why = "all agents have one density here; it may differ from tensor to tensor only."
        problems.refuse("parameters.density", shown, why, nearest="the same density for every model")
    if density <= 0:
        nearest = "weight 0, which leaves the base"
        problems.refuse("parameters.density", f"{density:g}", "nothing would be kept.", nearest=nearest)
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
_DRAWN = "the elements to drop are drawn by another generator, addressed by `seed`"
_RESCALED = "kept elements are divided by density, as the paper does; mergekit scales each tensor to its old magnitude"
DIFFERENT = {
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
