"""The rules that merge every tensor as a mergekit file does, by names that such models have.

The tensors that no filter fits, after the layers, give the settings; every other group becomes a rule where it
differs, broad ones first, because a later rule wins here. The rules are then tried on every sample name: a group that
they can't give exactly is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import translate
from itertools import permutations
from math import isclose
from typing import TYPE_CHECKING, Any

from agentmerge.mergekit.config import is_embedding, layer_of
from agentmerge.mergekit.methods import mix
from agentmerge.mergekit.parameters import filters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.mergekit.config import MergekitConfig
    from agentmerge.mergekit.methods import Mix
    from agentmerge.mergekit.parameters import Problems

SOME_LAYERS = 128
"""Layers to try filters on where the number is not known."""

_IN_LAYER = (
    "input_layernorm.weight",
    "self_attn.qkv_proj.weight",
    *(f"self_attn.{m}_proj.{part}" for m in "qkvo" for part in ("weight", "bias")),
    *(f"self_attn.{m}_norm.weight" for m in "qk"),
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "mlp.gate_up_proj.weight",
    "mlp.gate.weight",
    *(
        f"{mlp}.{m}_proj.weight"
        for mlp in ("mlp", "mlp.experts.0", "mlp.shared_expert")
        for m in ("gate", "up", "down")
    ),
    "mlp.shared_expert_gate.weight",
    "block_sparse_moe.gate.weight",
    *(f"block_sparse_moe.experts.0.{m}.weight" for m in ("w1", "w2", "w3")),
)
_OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


@dataclass
class TensorGroup:
    """Tensors that are merged alike."""

    parts: tuple[str, ...]
    """What their names have in common, in this order; none for the settings of the recipe."""
    words: int = 0
    """How many filters and layers that stands for: a group within another one has more."""
    tensors: list[str] = field(default_factory=list)

    @property
    def glob(self) -> str:
        """A glob that fits them."""
        return "*" + "*".join(re.sub(r"([*?[])", r"[\1]", part) for part in self.parts) + "*" * bool(self.parts)

    @property
    def description(self) -> str:
        """What to call them in a message."""
        return f"tensors whose name holds {' and '.join(map(repr, self.parts))}" if self.parts else "most tensors"


@dataclass(frozen=True)
class Treatment:
    """What a tensor is merged with here."""

    settings: dict[str, float]
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
    settings: dict[str, float]
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
    settings: dict[str, float]
    rules: tuple[TensorRule, ...]


def translation_of(config: MergekitConfig, problems: Problems) -> Translation:
    """Weights, settings and rules that merge every tensor as mergekit does.

    Raises:
        RecipeError: what can't be expressed.
    """
    groups = groups_of(config)
    mixes = [mix(config, group.tensors[0] if group.tensors else "", problems) for group in groups]
    problems.stop()
    weights = _weights(mixes)
    if not any(weights.values()):
        problems.refuse("parameters.weight", "0 for every model", "nothing would be merged.")
    treatments = [_treatment(config, g, m, weights, problems) for g, m in zip(groups, mixes, strict=True)]
    problems.stop()
    start = Treatment(next((t for t in treatments if not t.base), treatments[0]).settings)
    builder = RuleBuilder(start, list(zip(groups, treatments, strict=True)))
    _refuse_failing(builder, problems)
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


def _treatment(
    config: MergekitConfig, group: TensorGroup, mixed: Mix, weights: dict[str, float], problems: Problems
) -> Treatment:
    ratios = {m: mixed.weights[m] / w for m, w in weights.items() if w and mixed.weights[m]}
    if not ratios:
        return Treatment(_rounded(mixed.settings), base=True)
    ratio = next(iter(ratios.values()))
    differ = not all(isclose(r, ratio, rel_tol=1e-9) for r in ratios.values())
    mean = bool(mixed.settings.get("normalize"))  # then a common positive factor of all weights changes nothing
    if differ or (mean and ratio < 0):
        usual = " : ".join(f"{w:g}" for w in weights.values())
        here = " : ".join(f"{w:g}" for w in mixed.weights.values())
        problems.refuse(
            "parameters.weight",
            f"{here} for {group.description}, {usual} for others ({', '.join(config.models)})",
            "an agent has one weight for all tensors here; only a common factor (`scale` in a rule) or 0 (`skip`) may "
            "differ.",
            nearest="weights in the same proportion for every tensor",
        )
    settings = dict(mixed.settings)
    if "scale" in settings and not mean:
        settings["scale"] *= ratio
    return Treatment(_rounded(settings), frozenset(m for m, w in weights.items() if w and not mixed.weights[m]))


def _rounded(settings: dict[str, float]) -> dict[str, float]:
    """Without the last digits, which only the order of operations makes."""
    return {name: float(f"{value:.12g}") for name, value in settings.items()}


def _refuse_failing(builder: RuleBuilder, problems: Problems) -> None:
    failing = builder.failing()
    if failing is None:
        return
    group, treatment = failing
    who = f"0 for {', '.join(sorted(treatment.skip))}" if treatment.skip else "a weight for every model"
    problems.refuse(
        "parameters.weight",
        f"{who} in {group.description}, and 0 for other models in tensors around them",
        "a rule that changes no setting can't end the `take` of a broader one.",
        nearest="one set of models with weight 0 for all tensors, or filters that never meet in one name",
    )
    problems.stop()


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


def groups_of(config: MergekitConfig) -> list[TensorGroup]:
    """The groups of a configuration, broad ones first; the first one is of the tensors that nothing singles out."""
    filters = list(dict.fromkeys(word for _, setting in config.settings() for word in filters_of(setting)))
    groups: dict[tuple[Any, ...], TensorGroup] = {(None, frozenset(), ()): TensorGroup(())}
    for tensor in sample_tensors(filters, config.layers):
        place = _place_part(tensor) if config.graded else None
        fitting = frozenset(word for word in filters if word in tensor)
        words = [*fitting, *([place] if place else [])]
        parts = _parts(tensor, words)
        groups.setdefault((place, fitting, parts), TensorGroup(parts, len(words))).tensors.append(tensor)
    return sorted(groups.values(), key=lambda group: group.words)


def _place_part(tensor: str) -> str | None:
    layer = layer_of(tensor)
    if layer is not None:
        return f"layers.{layer}."
    return "embed" if is_embedding(tensor) else None


def _parts(tensor: str, words: list[str]) -> tuple[str, ...]:
    """What a name holds of the words, in the name's order; words that overlap in it become one."""
    spans: list[list[int]] = []
    for start, stop in sorted((tensor.index(word), tensor.index(word) + len(word)) for word in words):
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], stop)
        else:
            spans.append([start, stop])
    return tuple(tensor[start:stop] for start, stop in spans)


def sample_tensors(filters: Iterable[str], layers: int | None) -> list[str]:
    """Tensor names of Llama-like models, and a made-up one for every filter that fits none of those.

    Two filters of which one fits none of them may meet in one name, in either order.
    """
    count, wanted = layers or SOME_LAYERS, list(dict.fromkeys(filters))
    names = [f"model.layers.{i}.{part}" for i in range(count) for part in _IN_LAYER] + list(_OUTSIDE)
    strange = {word for word in wanted if not any(word in name for name in names)}
    pairs = [f"{a}.{b}" for a, b in permutations(wanted, 2) if strange & {a, b}]
    made_up = [*sorted(strange), *pairs]
    return names + made_up + [f"model.layers.{i}.{part}" for i in range(layers or 1) for part in made_up]
