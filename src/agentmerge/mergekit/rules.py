"""The rules that merge every tensor as a mergekit file does, by names that such models have.

The tensors that no filter fits, after the layers, give the settings; every other group becomes a rule where it
differs, broad ones first, because a later rule wins here. The rules are then tried on every sample name: a group that
they can't give exactly is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from math import isclose
from typing import TYPE_CHECKING

from agentmerge.errors import shortened
from agentmerge.mergekit.groups import groups_of
from agentmerge.mergekit.methods import mix
from agentmerge.mergekit.mix import Mix

if TYPE_CHECKING:
    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.groups import TensorGroup
    from agentmerge.mergekit.mix import Settings
    from agentmerge.mergekit.parameters import Problems

SHOWN = 3
"""Proportions of weights that a message shows."""


@dataclass(frozen=True)
class Treatment:
    """What a tensor is merged with here."""

    settings: Settings
    skip: frozenset[str] = frozenset()
    base: bool = False
    """The tensor is the base's."""

    def like(self, other: Treatment) -> bool:
        """Whether both give the same tensor."""
        if self.base or other.base:
            return self.base == other.base
        return self.settings == other.settings and self.skip == other.skip


@dataclass(frozen=True)
class TensorRule:
    """Other settings, and agents to skip, where a glob fits; or the base's tensor."""

    glob: str
    settings: Settings
    skip: frozenset[str] | None = None
    """In place of what earlier rules skip; None where it says nothing of it."""
    base: bool = False

    def applied(self, state: Treatment) -> Treatment:
        """What a tensor is merged with after this rule."""
        base = self.base or (state.base and not self.settings)
        return Treatment({**state.settings, **self.settings}, state.skip if self.skip is None else self.skip, base)


@dataclass(frozen=True)
class Translation:
    """Weights by model, settings of the method, and rules."""

    weights: dict[str, float]
    settings: Settings
    rules: tuple[TensorRule, ...]


def translation_of(config: MergekitConfig, problems: Problems) -> Translation | None:
    """Weights, settings and rules that merge every tensor as mergekit does; None, and told, where nothing does."""
    groups = groups_of(config)
    mixes = [mix(config, group.tensors[0] if group.tensors else "", problems) for group in groups]
    models = [m for m in config.models if all(m in found.weights for found in mixes)]  # what lacks a weight is told
    mixes = [Mix({m: found.weights[m] for m in models}, found.settings) for found in mixes]
    weights = _weights(mixes)
    if models and not any(weights.values()) and not problems.problems:
        problems.refuse("parameters.weight", "0 for every model", "nothing would be merged.")
    treatments = [_treatment(found, weights) for found in mixes]
    apart = [(g, m) for g, m, found in zip(groups, mixes, treatments, strict=True) if found is None]
    if apart:
        _refuse_apart(config, apart, weights, problems)
    treated = [(g, found) for g, found in zip(groups, treatments, strict=True) if found is not None]
    if apart or not models:
        return None
    start = Treatment(next((t for _, t in treated if not t.base), treated[0][1]).settings)
    builder = RuleBuilder(start, treated)
    _refuse_failing(config, builder, problems)
    if config.graded and config.layers is not None:
        builder.join_layers(config.layers)
    return Translation(weights, start.settings, tuple(builder.rules))


def _weights(mixes: list[Mix]) -> dict[str, float]:
    """The weights of the first group, completed from the others for an agent that has none there."""
    weights = dict.fromkeys(mixes[0].weights, 0.0)
    for one in mixes:
        known = [one.weights[m] / w for m, w in weights.items() if w and one.weights[m]]
        factor = known[0] if known else 1.0
        weights = {m: w or one.weights[m] / factor for m, w in weights.items()}
    return weights


def _treatment(mixed: Mix, weights: dict[str, float]) -> Treatment | None:
    """What a tensor is merged with; None where its weights are no common multiple of the agents' own."""
    ratios = {m: mixed.weights[m] / w for m, w in weights.items() if w and mixed.weights[m]}
    if not ratios:
        return Treatment(_rounded(mixed.settings), base=True)
    ratio = next(iter(ratios.values()))
    mean = bool(mixed.settings.get("normalize"))  # then a common positive factor of all weights changes nothing
    if not all(isclose(r, ratio, rel_tol=1e-9) for r in ratios.values()) or (mean and ratio < 0):
        return None
    settings = dict(mixed.settings)
    if "scale" in settings and not mean:
        settings["scale"] *= ratio
    return Treatment(_rounded(settings), frozenset(m for m, w in weights.items() if w and not mixed.weights[m]))


def _rounded(settings: Settings) -> Settings:
    """Without the last digits, which only the order of operations makes."""
    return {
        name: _rounded(value) if isinstance(value, dict) else float(f"{value:.12g}") for name, value in settings.items()
    }


def _refuse_apart(
    config: MergekitConfig, apart: list[tuple[TensorGroup, Mix]], weights: dict[str, float], problems: Problems
) -> None:
    """One line for all the groups whose weights stand in another proportion, at the setting that makes it so."""
    alike: dict[str, list[str]] = {}
    for group, mixed in apart:
        shown = " : ".join(f"{mixed.weights[m]:.4g}" for m in weights)
        alike.setdefault(shown, []).append(group.description)
    here = [f"{shown} for {shortened(places, 3)}" for shown, places in alike.items()]
    usual = " : ".join(f"{w:.4g}" for w in weights.values())
    problems.refuse(
        _place_of(config, apart[0], weights),
        f"{'; '.join(here[:SHOWN])}{f'; and {len(here) - SHOWN} more' if len(here) > SHOWN else ''}, {usual} for "
        f"others ({', '.join(weights)})",
        "an agent has one weight for all tensors here; only a common factor (`scale` in a rule) or 0 (`skip`) may "
        "differ.",
        nearest="weights in the same proportion for every tensor",
    )


def _place_of(config: MergekitConfig, apart: tuple[TensorGroup, Mix], weights: dict[str, float]) -> str:
    """The path of the first weight that differs from the agent's own."""
    group, mixed = apart
    tensor = group.tensors[0] if group.tensors else ""
    differing = [m for m, w in weights.items() if mixed.weights[m] != w] or list(weights)
    found = config.found("weight", tensor, differing[0])
    return found.where if found else "parameters.weight"


def _refuse_failing(config: MergekitConfig, builder: RuleBuilder, problems: Problems) -> None:
    failing = builder.failing()
    if failing is None:
        return
    group, treatment = failing
    who = f"0 for {', '.join(sorted(treatment.skip))}" if treatment.skip else "a weight for every model"
    model = next(iter(sorted(treatment.skip)), config.models[0])
    found = config.found("weight", group.tensors[0], model)
    problems.refuse(
        found.where if found else "parameters.weight",
        f"{who} in {group.description}, and 0 for other models in tensors around them",
        "a rule that changes no setting can't end the `take` of a broader one.",
        nearest="one set of models with weight 0 for all tensors, or filters that never meet in one name",
    )


class RuleBuilder:
    """The rules that give every group its treatment, from the settings that hold where no rule fits."""

    def __init__(self, start: Treatment, treatments: list[tuple[TensorGroup, Treatment]]) -> None:
        """Make them, broad groups first.

        Args:
            start: the settings of the recipe.
            treatments: of every group.
        """
        self._start, self._treatments = start, treatments
        self._state = self._fresh()
        self.rules: list[TensorRule] = []
        for group, treatment in treatments:
            self._add(group, treatment)

    def failing(self) -> tuple[TensorGroup, Treatment] | None:
        """The first group that the rules do not give."""
        return next(
            ((group, treatment) for group, treatment in self._treatments if not self._given(group, treatment)), None
        )

    def join_layers(self, layers: int) -> None:
        """One rule for all the layers in place of one rule for each, where they are alike."""
        groups: dict[tuple[str, str], list[TensorRule]] = {}
        for rule in self.rules:
            glob = re.sub(r"^\*layers\.\d+\.", "*layers.", rule.glob)
            groups.setdefault((glob, repr((rule.settings, rule.skip, rule.base))), []).append(rule)
        before, self.rules = self.rules, []
        for (glob, _), alike in groups.items():
            first = alike[0]
            joined = [TensorRule(glob, first.settings, first.skip, first.base)]
            self.rules += joined if glob != first.glob and len(alike) == layers else alike
        self._state = self._fresh()
        for rule in self.rules:
            self._apply(rule)
        if self.failing() is not None:
            self.rules = before

    def _fresh(self) -> dict[str, Treatment]:
        return {tensor: self._start for group, _ in self._treatments for tensor in group.tensors}

    def _given(self, group: TensorGroup, treatment: Treatment) -> bool:
        return all(self._state[tensor].like(treatment) for tensor in group.tensors)

    def _add(self, group: TensorGroup, treatment: Treatment) -> None:
        now = [self._state[tensor] for tensor in group.tensors] if group.parts else [self._start]
        if all(state.like(treatment) for state in now):
            return
        settings = {k: v for k, v in treatment.settings.items() if any(s.base or s.settings[k] != v for s in now)}
        skip = None if all(state.skip == treatment.skip for state in now) else treatment.skip
        rule = TensorRule(group.glob, {}, base=True) if treatment.base else TensorRule(group.glob, settings, skip)
        self.rules.append(rule)
        self._apply(rule)

    def _apply(self, rule: TensorRule) -> None:
        fits = re.compile(translate(rule.glob)).match
        self._state |= {name: rule.applied(state) for name, state in self._state.items() if fits(name)}
