"""From the counts of a full probe to rows of shares, ratios and sizes. Knows no methods."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.analysis.chance import against_chance, expected_exactly
from agentmerge.analysis.models import (
    AgentRow,
    BinPairRow,
    BinRow,
    LostRow,
    ModuleRow,
    PairRow,
    StepRow,
    SurvivalRow,
    share,
)
from agentmerge.survey.modules import ORDER, Module, in_order, module_of
from agentmerge.survey.overlap import Overlap
from agentmerge.survey.profiling import MAGNITUDE_SHIFT, MULTIPLIERS, OUTPUTS, SCALED_DOWN, pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.profile import Energy, Groups, ProfileCounts
    from agentmerge.tensors import Array

BIAS = 127
STEP_NAMES = ("1", "2", "3-4", "5-8", "9+")
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True)
class Measured:
    """The answers of a full probe: what every row is made of."""

    names: Sequence[str]
    tensors: Mapping[str, OverlapCounts]
    """Exact counts per tensor."""
    groups: Groups
    """Counts of the profile, per module."""

    @cached_property
    def overlap(self) -> dict[Module, OverlapCounts]:
        """The exact counts per module."""
        found: dict[Module, OverlapCounts] = {}
        for name, counts in self.tensors.items():
            module = module_of(name)
            found[module] = Overlap().combine(found[module], counts) if module in found else counts
        return found

    @cached_property
    def total(self) -> ProfileCounts:
        """Over all modules."""
        return reduce(add, self.groups.values())

    @cached_property
    def energy(self) -> Energy:
        """Over all modules, of the sampled elements."""
        return self.total.energy()

    @property
    def elements(self) -> int:
        """All merged elements."""
        return sum(counts.elements for counts in self.tensors.values())

    @property
    def sampled(self) -> int:
        """Elements on sampled leaves."""
        return int(self.total.elements.sum())

    @cached_property
    def strata(self) -> tuple[Array, Array, Array]:
        """Elements [strata], changed [t, strata], both [p, strata]; a stratum is weights of one size in one module."""
        groups = self.groups.values()
        return (
            np.concatenate([group.elements for group in groups]),
            np.concatenate([group.changed for group in groups], axis=1),
            np.concatenate([group.both for group in groups], axis=1),
        )


def module_rows(m: Measured) -> list[ModuleRow]:
    """Every agent in every module."""
    rows = []
    for module in in_order(list(m.overlap)):
        counts = m.overlap[module]
        for t, name in enumerate(m.names):
            ratio, changed = counts.ratio[t], counts.changed[t]
            rows.append(
                ModuleRow(
                    layer=module.layer,
                    kind=module.kind,
                    agent=name,
                    elements=counts.elements,
                    changed=changed,
                    density=counts.density[t],
                    unique=counts.unique[t],
                    shared=counts.shared[t],
                    overlap_unique_ratio=None if ratio == float("inf") else ratio,
                    below_threshold=int(counts.different[t]) - changed,
                )
            )
    return rows


def pair_rows(m: Measured) -> list[PairRow]:
    """Every pair over the model, by layer and by kind of module."""
    modules = in_order(list(m.groups))
    layers = sorted({module.layer for module in modules if module.layer >= 0})
    kinds = [kind for kind in ORDER if any(module.kind == kind for module in modules)]
    scopes = {"model": modules}
    scopes |= {f"layer {layer}": [x for x in modules if x.layer == layer] for layer in layers}
    scopes |= {kind: [x for x in modules if x.kind == kind] for kind in kinds}
    return [row for scope, chosen in scopes.items() for row in _pair_rows(m, scope, chosen)]


def _pair_rows(m: Measured, scope: str, chosen: list[Module]) -> list[PairRow]:
    part = Measured(m.names, {}, {module: m.groups[module] for module in chosen})
    counts, energy, rows = part.total, part.energy, []
    elements, changed, _ = part.strata
    all_changed = changed.sum(axis=1, keepdims=True)
    for p, (s, t) in enumerate(pairs(len(m.names))):
        both = int(counts.both[p].sum())
        plain = against_chance(both, np.array([part.sampled]), all_changed[s], all_changed[t])
        within = against_chance(both, elements, changed[s], changed[t])
        rows.append(
            PairRow(
                scope=scope,
                left=m.names[s],
                right=m.names[t],
                overlap=both,
                expected=plain.expected,
                ratio=plain.ratio,
                z=plain.z,
                ratio_within=within.ratio,
                z_within=within.z,
                agree=share(int(counts.agree[p]), both),
                equal=share(int(counts.equal[p]), both),
                cosine=share(energy.dot[p], float(np.sqrt(energy.left[p] * energy.right[p]))),
            )
        )
    return rows


def bin_rows(m: Measured) -> list[BinRow]:
    """Every agent by the size of the base's weights."""
    return [
        BinRow(exponent=e - BIAS, agent=name, elements=int(n), changed=int(found[e]), density=found[e] / n)
        for e, n in enumerate(m.total.elements)
        if n
        for name, found in zip(m.names, m.total.changed, strict=True)
    ]


def bin_pair_rows(m: Measured) -> list[BinPairRow]:
    """Every pair by the size of the base's weights."""
    rows = []
    groups = list(m.groups.values())
    elements = np.stack([group.elements for group in groups])
    changed = np.stack([group.changed for group in groups])
    for e in m.total.elements.nonzero()[0]:
        for p, (s, t) in enumerate(pairs(len(m.names))):
            both = int(m.total.both[p, e])
            chance = against_chance(both, elements[:, e], changed[:, s, e], changed[:, t, e])
            rows.append(
                BinPairRow(
                    exponent=int(e) - BIAS,
                    left=m.names[s],
                    right=m.names[t],
                    overlap=both,
                    expected=chance.expected,
                    ratio=chance.ratio,
                )
            )
    return rows


def step_rows(m: Measured) -> list[StepRow]:
    """The sizes of every agent's updates."""
    return [
        StepRow(agent=name, steps=step, elements=int(count), share=share(int(count), int(found.sum())))
        for name, found in zip(m.names, m.total.steps, strict=True)
        for step, count in zip(STEP_NAMES, found, strict=True)
    ]


def agent_rows(m: Measured) -> list[AgentRow]:
    """Every agent as a whole."""
    elements, changed, _ = m.strata
    chance = expected_exactly(elements, changed)
    scaled, rows = m.elements / max(m.sampled, 1), []
    for t, name in enumerate(m.names):
        unique, shared = float(m.energy.unique[t]), float(m.energy.shared[t])
        many = int(m.total.sampled[2, t])
        rows.append(
            AgentRow(
                agent=name,
                tensors_changed=sum(counts.changed[t] > 0 for counts in m.tensors.values()),
                tensors=len(m.tensors),
                magnitude={f"{q:g}": quantile(m.total.magnitudes[t], q) for q in QUANTILES},
                norm=float(np.sqrt((unique + shared) * scaled)),
                unique_norm_share=share(unique, unique + shared),
                conflict=share(int(m.total.conflict[t]), many),
                cancelled=share(int(m.total.cancelled[t]), many),
                expected_exactly=[share(x, float(chance[t].sum())) for x in chance[t]],
            )
        )
    return rows


def quantile(classes: Array, q: float) -> float | None:
    """The lower end of the class of |tau| that holds the element of rank ceil(q * n); None of nothing."""
    ends = np.cumsum(classes)
    if not ends[-1]:
        return None
    place = np.searchsorted(ends, max(int(np.ceil(q * ends[-1])), 1))
    return float(np.array([int(place) << MAGNITUDE_SHIFT], np.uint32).view(np.float32)[0])


def lost_rows(m: Measured) -> list[LostRow]:
    """What rounding would take from methods that scale down."""
    changed, unique, _ = m.total.sampled
    return [
        LostRow(
            method=method,
            dtype=dtype,
            agent=name,
            changed_lost=share(int(m.total.lost[a, d, 0, t]), int(changed[t])),
            unique_lost=share(int(m.total.lost[a, d, 1, t]), int(unique[t])),
        )
        for a, method in enumerate(SCALED_DOWN)
        for d, dtype in enumerate(OUTPUTS)
        for t, name in enumerate(m.names)
    ]


def survival_rows(m: Measured) -> list[SurvivalRow]:
    """How far multiplied unique changes outlive rounding."""
    unique = m.total.sampled[1]
    return [
        SurvivalRow(
            dtype=dtype,
            agent=name,
            multiplier=multiplier,
            survived=share(int(m.total.survived[d, k, t]), int(unique[t])),
        )
        for d, dtype in enumerate(OUTPUTS)
        for t, name in enumerate(m.names)
        for k, multiplier in enumerate(MULTIPLIERS)
    ]
