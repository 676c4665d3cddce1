"""Where agents changed what, and where they meet: rows by module, by pair and by size of weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.analysis.chance import against_chance
from agentmerge.analysis.measured import Measured
from agentmerge.analysis.rows import BinPairRow, BinRow, ModuleRow, PairRow, share
from agentmerge.survey.full.definitions import pairs
from agentmerge.survey.modules import ORDER, in_order

if TYPE_CHECKING:
    from agentmerge.survey.modules import Module

BIAS = 127
"""Of a float32 exponent."""


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
