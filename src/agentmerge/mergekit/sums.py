"""mergekit's methods that add task vectors: as they are, trimmed, thinned out, or by RAM's rule.

linear           sum of w M / sum of w, over all models            = base + scale * sum of w tau, scale 1 / sum of w
task_arithmetic  base + lambda * sum of w tau                      [/ sum of w, with normalize]
ties             base + lambda * disjoint mean of trimmed w tau    [without normalize: the sum]
dare_*           the same on dropped task vectors, kept elements / density unless rescale is false
breadcrumbs*     the same without the largest and the smallest changes
della*           the same on task vectors dropped by rank, brought back to their old size unless rescale is false
ram, ramplus_tl  no weights
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

from agentmerge.mergekit.mix import (
    Mix,
    densities_of,
    normalize_of,
    one_or_each,
    ones_of,
    place_of,
    scale_of,
    shares_of,
    value_or,
    weights_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.parameters import Problems

LINEAR_BASE = (
    "linear: the base has no weight, so it is the agents' common ancestor and nothing else; mergekit 0.1.5 stops here"
)
KEPT = (
    "all elements that are as large as the smallest kept one stay, too, where mergekit keeps some of them; of agents "
    "in bfloat16 that is from a few elements to percents of a tensor, and one or two more by counting"
)
CUT = (
    "all elements that are as large as the smallest or as the largest kept one stay, too, where mergekit keeps some of "
    "them"
)
DRAWN = "the elements to drop are drawn by another generator, addressed by `seed`"
RESCALED = "kept elements are divided by density, as the paper does; mergekit scales each tensor to its old magnitude"


def _linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = weights_of(config, tensor, problems)
    own = config.value("weight", tensor, config.base)
    if own is None and not config.base_given:
        first = config.slices[0].models[0].where
        why = "linear needs a weight for every model."
        problems.refuse(f"{first}.parameters.weight", f"nothing for {config.base}", why, todo="Add one.")
    elif own is None:
        problems.note(LINEAR_BASE)
    total = sum(weights.values()) + (own or 0.0)
    if value_or(config.value("normalize", tensor), 1.0):
        if total == 0:
            problems.refuse(place_of(config, "weight", tensor), "0 in all", "the weights of a mean can't add up to 0.")
        return Mix(weights, {"scale": 1 / (total or 1.0)})
    if not isclose(total, 1, rel_tol=1e-9):
        problems.refuse(
            place_of(config, "normalize", tensor),
            f"false and weights that add up to {total:g}",
            "the base itself would be multiplied by that sum.",
            nearest="normalize: true, or weights that add up to 1",
        )
    return Mix(weights, {"scale": 1.0})


def _task_arithmetic(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = weights_of(config, tensor, problems)
    total = sum(weights.values())
    divisor = total if config.value("normalize", tensor) and abs(total) >= 1e-8 else 1.0
    return Mix(weights, {"scale": scale_of(config, tensor) / divisor})


def _ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = weights_of(config, tensor, problems)
    densities = densities_of(config, tensor, problems)
    trims = min(densities.values(), default=1.0) < 1
    if trims:
        problems.note(f"ties: {KEPT}")
    rescale = config.found("rescale", tensor)
    if rescale and rescale.value and trims:
        why = "`ties` does not rescale what it keeps."
        nearest = "rescale: false and a lambda of your choice, which is `scale`"
        problems.refuse(rescale.where, "true", why, nearest=nearest)
    normalize = normalize_of(config, tensor, default=True)
    density = one_or_each(densities, weights)
    return Mix(weights, {"density": density, "scale": scale_of(config, tensor), "normalize": normalize})


def _dare_linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    inner = _task_arithmetic(config, tensor, problems)
    return _dropped(config, tensor, inner, problems)


def _dare_ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    normalize = normalize_of(config, tensor, default=False)
    inner = Mix(weights_of(config, tensor, problems), {"scale": scale_of(config, tensor), "normalize": normalize})
    return _dropped(config, tensor, inner, problems)


def _dropped(config: MergekitConfig, tensor: str, inner: Mix, problems: Problems) -> Mix:
    """Drop before the inner merge, which is linear in a factor of all its agents, and where it adds in one of each.

    `scale`, or the weights, take back a rescale that mergekit leaves out.
    """
    densities = densities_of(config, tensor, problems)
    density, rescale = one_or_each(densities, inner.weights), config.found("rescale", tensor)
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
    return Mix(ones_of(config, tensor), {"threshold": value_or(config.value("epsilon", tensor), 1e-5)})


def _ramplus_tl(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    values = {name: value_or(config.value(theirs, tensor), default) for name, theirs, default in _RAMPLUS_TL}
    return Mix(ones_of(config, tensor), values)


_RAMPLUS_TL = (("threshold", "epsilon", 1e-5), ("rescale", "r", 0.1), ("clip", "alpha", 0.2))


def _breadcrumbs(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    inner = _task_arithmetic(config, tensor, problems)
    return _without_outliers(config, tensor, inner, problems)


def _breadcrumbs_ties(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    return _without_outliers(config, tensor, _elected(config, tensor, problems, normalize=False), problems)


def _without_outliers(config: MergekitConfig, tensor: str, inner: Mix, problems: Problems) -> Mix:
    densities = densities_of(config, tensor, problems)
    if min(densities.values(), default=1.0) < 1:
        problems.note(f"{config.method}: {CUT}")
    density, rescale = one_or_each(densities, inner.weights), config.value("rescale", tensor)
    gamma = one_or_each(shares_of(config, tensor, "gamma", 0.01, problems), inner.weights)
    if rescale:
        problems.note(
            f"{config.method}: rescale counts all that stays, so its factor differs where more of it stays here"
        )
    return Mix(inner.weights, {**inner.settings, "density": density, "gamma": gamma, "rescale": float(bool(rescale))})


def _della(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    return _by_rank(config, tensor, _elected(config, tensor, problems, normalize=True), problems)


def _della_linear(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    return _by_rank(config, tensor, _task_arithmetic(config, tensor, problems), problems)


def _by_rank(config: MergekitConfig, tensor: str, inner: Mix, problems: Problems) -> Mix:
    densities = densities_of(config, tensor, problems)
    if min(densities.values(), default=1.0) < 1:
        problems.note(f"{config.method}: {DRAWN}")
    density, rescale = one_or_each(densities, inner.weights), value_or(config.value("rescale", tensor), 1.0)
    epsilon = one_or_each(shares_of(config, tensor, "epsilon", 0.15, problems), inner.weights)
    both = {"density": density, "epsilon": epsilon, "rescale": float(bool(rescale))}
    return Mix(inner.weights, {**inner.settings, **both})


def _elected(config: MergekitConfig, tensor: str, problems: Problems, *, normalize: bool) -> Mix:
    """What `ties` makes of task vectors that somebody else trims or drops."""
    settings = {"scale": scale_of(config, tensor), "normalize": normalize_of(config, tensor, default=normalize)}
    return Mix(weights_of(config, tensor, problems), settings)


MIXES: dict[str, Callable[[MergekitConfig, str, Problems], Mix]] = {
    "linear": _linear,
    "task_arithmetic": _task_arithmetic,
    "ties": _ties,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "breadcrumbs": _breadcrumbs,
    "breadcrumbs_ties": _breadcrumbs_ties,
    "della": _della,
    "della_linear": _della_linear,
    "ram": _ram,
    "ramplus_tl": _ramplus_tl,
}
