"""mergekit's methods that look at angles, variances or sizes, tensor by tensor.

slerp         of the weights themselves: (1 - t) base + t M where the two point nearly the same way
nuslerp       our slerp: along the arc between two task vectors
multislerp    the same
model_stock   the same, with norms of at least 1e-6 in a product
sce, nearswap the same
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

from agentmerge.mergekit.mix import Mix, ones_of, value_or, weights_of, whole_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.parameters import Problems

STRAIGHT = (
    "slerp: the straight mean of both models, as mergekit takes it where their weights point nearly the same way (a "
    "cosine above 0.9995, as of any agent and its base); it turns the weights of models that are further apart"
)
NEARLY_BASE = "model_stock: the result is nearly the base for RL agents, here as in mergekit"
PER = ("tensor", "row", "column")
"""Of what nuslerp takes angles, by the number that stands for it here."""


def _slerp(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    _count(config, 1, "slerp is of two models, one of them the base", problems)
    found = config.value("t", tensor)
    if found is None:
        problems.lack("parameters.t", "Add it: 0 is the base, 1 the other model.")
    problems.note(STRAIGHT)
    return Mix(ones_of(config, tensor), {"scale": value_or(found, 0.0)})


def _nuslerp(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    _count(config, 2, "nuslerp is of two models beside the base", problems)
    weights = weights_of(config, tensor, problems)
    whole_group(config, weights, tensor, problems)
    rows = value_or(config.value("nuslerp_row_wise", tensor), 0.0)
    flat = value_or(config.value("nuslerp_flatten", tensor), 1.0)
    return Mix(weights, {"per": float(0 if flat else 2 if rows else 1)})


def _multislerp(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = weights_of(config, tensor, problems)
    whole_group(config, weights, tensor, problems)
    total, normalize = sum(weights.values()), config.found("normalize_weights", tensor)
    if normalize is not None and not normalize.value and not isclose(total, 1, rel_tol=1e-9):
        problems.refuse(
            normalize.where,
            f"false and weights that add up to {total:g}",
            "weights of another sum would turn the result around their mean direction.",
            nearest="normalize_weights: true, or weights that add up to 1",
        )
    return Mix(weights, {"eps": value_or(config.value("eps", tensor), 1e-8)})


def _model_stock(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights = ones_of(config, tensor)
    if len(weights) < 2:
        problems.refuse("models", f"{len(weights)} beside the base", expected="two or more")
    whole_group(config, weights, tensor, problems)
    problems.note(NEARLY_BASE)
    return Mix(weights, {"filter_wise": float(bool(config.value("filter_wise", tensor)))})


def _sce(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    weights, found = ones_of(config, tensor), config.found("select_topk", tensor)
    whole_group(config, weights, tensor, problems)
    kept = 1.0 if found is None else min(found.value, 1.0)
    if found is not None and kept <= 0:
        problems.refuse(found.where, f"{kept:g}", "nothing would be kept.", nearest="the base itself")
        kept = 1.0
    if kept < 1:
        problems.note("sce: all elements whose variance is that of the cut stay, where mergekit keeps some of them")
    return Mix(weights, {"select_topk": kept})


def _nearswap(config: MergekitConfig, tensor: str, problems: Problems) -> Mix:
    _count(config, 1, "nearswap is of two models, one of them the base", problems)
    found = config.found("t", tensor)
    if found is None:
        problems.lack("parameters.t", "Add it: the largest change.")
    elif found.value <= 0:
        problems.refuse(found.where, f"{found.value:g}", "nothing would be merged.", nearest="the base itself")
    return Mix(ones_of(config, tensor), {"t": 1e-4 if found is None or found.value <= 0 else found.value})


def _count(config: MergekitConfig, models: int, why: str, problems: Problems) -> None:
    if len(config.models) != models:
        problems.refuse("models", f"{len(config.models)} beside the base", f"{why}.")


MIXES: dict[str, Callable[[MergekitConfig, str, Problems], Mix]] = {
    "slerp": _slerp,
    "nuslerp": _nuslerp,
    "multislerp": _multislerp,
    "model_stock": _model_stock,
    "sce": _sce,
    "nearswap": _nearswap,
}
