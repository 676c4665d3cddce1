"""How large the changes are, how they meet, and what rounding would leave of them: rows by agent."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.analysis.chance import expected_exactly
from agentmerge.analysis.rows import AgentRow, LostRow, StepRow, SurvivalRow, share
from agentmerge.kernels.arguments import MAGNITUDE_SHIFT
from agentmerge.survey.full.definitions import MULTIPLIERS, OUTPUTS, SCALED_DOWN

if TYPE_CHECKING:
    from agentmerge.analysis.measured import Measured
    from agentmerge.tensors import Array

STEP_NAMES = ("1", "2", "3-4", "5-8", "9+")
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


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
                norm=sqrt(scaled * (unique + shared)) if isfinite(unique + shared) else None,
                unique_norm_share=share(unique, unique + shared),
                conflict=share(int(m.total.conflict[t]), many),
                cancelled=share(int(m.total.cancelled[t]), many),
                expected_exactly=[share(x, float(chance[t].sum())) for x in chance[t]],
            )
        )
    return rows


def quantile(classes: Array, q: float) -> float | None:
    """The lower end of the class of |tau| that holds the element of rank ceil(q * n); None of nothing and of inf."""
    ends = np.cumsum(classes)
    if not ends[-1]:
        return None
    place = np.searchsorted(ends, max(int(np.ceil(q * ends[-1])), 1))
    found = float(np.array([int(place) << MAGNITUDE_SHIFT], np.uint32).view(np.float32)[0])
    return found if isfinite(found) else None


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
