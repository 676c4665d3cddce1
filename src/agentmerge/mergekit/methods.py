"""mergekit's methods: which have an equal here, and what each is called here; mix.py and its users say what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import did_you_mean
from agentmerge.mergekit import angles, sums
from agentmerge.mergekit.angles import PER
from agentmerge.mergekit.parameters import READ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.mix import Mix, Settings
    from agentmerge.mergekit.parameters import Problems

METHODS = tuple(READ)
"""mergekit's methods that have an equal here."""

NEAREST_METHOD = {
    "karcher": "`linear`, which is the same for models that are close; it turns the weights themselves, by steps",
    "arcee_fusion": "`ties` with a small density, or `ram`; what it keeps depends on unseeded draws",
    "passthrough": "a rule with `take`, which copies tensors from the base or from one agent",
}
"""mergekit's methods that are not here, and what comes nearest."""


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
    return {**sums.MIXES, **angles.MIXES}[config.method](config, tensor, problems)


_ADDED = {"name": "task_arithmetic"}
_ELECTED = {"name": "ties", "density": 1.0, "zero_sign": "plus"}

EQUAL: dict[str, dict[str, Any]] = {
    "linear": _ADDED,
    "task_arithmetic": _ADDED,
    "ties": {"name": "ties", "scope": "tensor", "zero_sign": "plus"},
    "dare_linear": {"name": "dare"},
    "dare_ties": {"name": "dare"},
    "breadcrumbs": {"name": "breadcrumbs"},
    "breadcrumbs_ties": {"name": "breadcrumbs_ties"},
    "della": {"name": "della"},
    "della_linear": {"name": "della_linear"},
    "slerp": _ADDED,
    "nuslerp": {"name": "slerp"},
    "multislerp": {"name": "multislerp"},
    "model_stock": {"name": "model_stock", "floor": 1e-6},
    "sce": {"name": "sce"},
    "nearswap": {"name": "nearswap"},
    "ram": {"name": "ram"},
    "ramplus_tl": {"name": "ram_plus", "scope": "tensor"},
}
"""By mergekit's method: ours, with the settings that make it the same."""

_INNER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("dare_linear", "breadcrumbs", "della_linear"), _ADDED),
    **dict.fromkeys(("dare_ties", "breadcrumbs_ties", "della"), _ELECTED),
}
"""What wraps another method here, and that method."""
_WORDS: dict[tuple[str, str], tuple[Any, ...]] = {
    **{(method, "rescale"): ("none", "norm") for method in ("della", "della_linear")},
    **{(method, "rescale"): (False, True) for method in ("breadcrumbs", "breadcrumbs_ties")},
    ("model_stock", "filter_wise"): (False, True),
    ("nuslerp", "per"): PER,
}
"""What the numbers of a setting stand for here, from 0 on."""


def shaped(method: str, settings: Settings, names: Mapping[str, str], *, rule: bool = False) -> dict[str, Any]:
    """Settings where our method has them.

    Args:
        method: mergekit's.
        settings: of ours.
        names: of the agents, by model.
        rule: whether they stand in a rule, which keeps what it does not name of an inner method.
    """
    values = {name: _shaped(method, name, value, names) for name, value in settings.items()}
    if method not in _INNER:
        return values
    inner = {name: values.pop(name) for name in ("scale", "normalize") if name in values}
    if rule:
        return {**values, "then": inner} if inner else values
    return {"density": values.pop("density", 1.0), **values, "then": {**_INNER[method], **inner}}


def _shaped(method: str, name: str, value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names[model]: number for model, number in value.items()}
    if name == "normalize":
        return bool(value)
    return _WORDS[method, name][int(value)] if (method, name) in _WORDS else value
