"""From what mergekit does with every tensor to settings, weights and rules.

The tensors that no filter fits, after the layers, give the settings; every other case becomes a rule where it differs,
broad ones first, because a later rule wins here. The rules are then tried on every sample name: a case that they can't
give exactly is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING

from agentmerge.convert.cases import cases_of
from agentmerge.convert.mixing import Mix, mix
from agentmerge.convert.ruleset import Rule, RuleSet, Wanted

if TYPE_CHECKING:
    from agentmerge.convert.cases import Case
    from agentmerge.convert.config import MergekitConfig
    from agentmerge.convert.findings import Findings


@dataclass(frozen=True)
class Planned:
    """Weights by model, settings of the method, and rules."""

    weights: dict[str, float]
    settings: dict[str, float]
    rules: tuple[Rule, ...]


def plan(config: MergekitConfig, findings: Findings) -> Planned:
    """Weights, settings and rules that merge every tensor as mergekit does.

    Raises:
        RecipeError: what can't be expressed.
    """
    cases = cases_of(config)
    mixes = [mix(config, case.tensors[0] if case.tensors else "", findings) for case in cases]
    findings.stop()
    weights = _weights(mixes)
    if not any(weights.values()):
        findings.refuse("parameters.weight", "0 for every model", "nothing would be merged.")
    wanted = [_wanted(config, case, found, weights, findings) for case, found in zip(cases, mixes, strict=True)]
    findings.stop()
    start = Wanted(next((w for w in wanted if not w.base), wanted[0]).settings)
    made = RuleSet(start, list(zip(cases, wanted, strict=True)))
    _refuse_failing(made, findings)
    if config.graded and config.layers is not None:
        made.join_layers(config.layers)
    return Planned(weights, start.settings, tuple(made.rules))


def _weights(mixes: list[Mix]) -> dict[str, float]:
    """The weights of the first case, completed from the others for an agent that has none there."""
    weights = dict.fromkeys(mixes[0].weights, 0.0)
    for found in mixes:
        known = [found.weights[m] / w for m, w in weights.items() if w and found.weights[m]]
        factor = known[0] if known else 1.0
        weights = {m: w or found.weights[m] / factor for m, w in weights.items()}
    return weights


def _wanted(config: MergekitConfig, case: Case, found: Mix, weights: dict[str, float], findings: Findings) -> Wanted:
    ratios = {m: found.weights[m] / w for m, w in weights.items() if w and found.weights[m]}
    if not ratios:
        return Wanted(_rounded(found.settings), base=True)
    ratio = next(iter(ratios.values()))
    differ = not all(isclose(r, ratio, rel_tol=1e-9) for r in ratios.values())
    mean = bool(found.settings.get("normalize"))  # then a common positive factor of all weights changes nothing
    if differ or (mean and ratio < 0):
        usual = " : ".join(f"{w:g}" for w in weights.values())
        here = " : ".join(f"{w:g}" for w in found.weights.values())
        findings.refuse(
            "parameters.weight",
            f"{here} for {case.described}, {usual} for others ({', '.join(config.models)})",
            "an agent has one weight for all tensors here; only a common factor (`scale` in a rule) or 0 (`skip`) may "
            "differ.",
            "weights in the same proportion for every tensor",
        )
    settings = dict(found.settings)
    if "scale" in settings and not mean:
        settings["scale"] *= ratio
    return Wanted(_rounded(settings), frozenset(m for m, w in weights.items() if w and not found.weights[m]))


def _rounded(settings: dict[str, float]) -> dict[str, float]:
    """Without the last digits, which only the order of operations makes."""
    return {name: float(f"{value:.12g}") for name, value in settings.items()}


def _refuse_failing(made: RuleSet, findings: Findings) -> None:
    failing = made.failing()
    if failing is None:
        return
    case, want = failing
    who = f"0 for {', '.join(sorted(want.skip))}" if want.skip else "a weight for every model"
    findings.refuse(
        "parameters.weight",
        f"{who} in {case.described}, and 0 for other models in tensors around them",
        "a rule can't end the `skip` of a broader one.",
        "one set of models with weight 0 for all tensors, or filters that never meet in one name",
    )
    findings.stop()
