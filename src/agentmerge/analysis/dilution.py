"""What each method would make of each agent's unique changes, and of its task vector as a whole, before any merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentmerge.analysis.models import DilutionRow, RescaleRow, SurvivalRow
from agentmerge.methods.dare import Dare
from agentmerge.methods.ram import Ram
from agentmerge.methods.ties import Ties
from agentmerge.survey.full.definitions import OUTPUTS, pairs

if TYPE_CHECKING:
    from agentmerge.analysis.measured import Measured
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.tensors import Array

RESCALES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
SAME = 1e-6
"""Multipliers as close as this are one."""


class Row(NamedTuple):
    """A method: its multiplier and retention per agent, NaN where unknown."""

    method: str
    multiplier: Array
    retention: Array
    note: str


def dilution_rows(m: Measured, counts: OverlapCounts) -> list[DilutionRow]:
    """Every method at its defaults, agents of equal weight, in float32."""
    found = [*_ram_rows(m, counts), *_other_rows(m, counts)]
    return [
        DilutionRow(
            method=row.method,
            agent=name,
            multiplier=_known(row.multiplier[t]),
            retention=_known(row.retention[t]),
            note=row.note,
        )
        for row in found
        for t, name in enumerate(m.names)
    ]


def _ram_rows(m: Measured, counts: OverlapCounts) -> list[Row]:
    unique, shared, kept = m.energy.unique, m.energy.shared, m.energy.kept
    with np.errstate(all="ignore"):
        auto = np.where(unique > 0, np.maximum(1 + (shared - kept) / unique, 0), 1.0)

        def row(method: str, scale: Array, note: str) -> Row:
            return Row(method, scale, (scale * unique + kept) / (unique + shared), note)

        plain = row("ram", np.ones(len(m.names)), "unique changes whole, shared ones averaged")
        stretch = 1 / np.nanmean(plain.retention) if np.isfinite(plain.retention).any() else np.nan
    soft = Ram(name="ram_plus_soft")
    return [
        plain,
        row("ram_plus", np.array(Ram().scales(counts)), "1 + 0.1 * min(rho, 2)"),
        row("ram_plus_soft", np.array(soft.scales(counts)), "1 + 0.1 * shared / changed"),
        row("ram_plus, rescale auto", auto, "makes up in unique elements for what the mean takes from shared ones"),
        Row("calibrate around ram", plain.multiplier * stretch, plain.retention * stretch, "RAM to mean retention 1"),
    ]


def _other_rows(m: Measured, counts: OverlapCounts) -> list[Row]:
    n, density = len(m.names), np.array(counts.density)
    energy, unknown = m.energy.unique + m.energy.shared, np.full(n, np.nan)
    along = energy.copy()
    for p, (s, t) in enumerate(pairs(n)):
        along[s] += m.energy.dot[p]
        along[t] += m.energy.dot[p]
    with np.errstate(all="ignore"):
        kept = np.minimum(1.0, Ties().density / density)
        whole = along / energy
    dare = 1 / n / Dare.parse({"name": "dare"}).density
    return [
        Row("task_arithmetic", np.full(n, 1 / n), whole / n, "scale 1 / N; at scale 1 N times as much"),
        Row("task_arithmetic, scale 1", np.ones(n), whole, "the plain sum"),
        Row("linear", np.full(n, 1 / n), whole / n, "the mean"),
        Row("ties", kept, unknown, "mean over changed elements: 1 for the largest 20 % of all elements, else 0"),
        Row("dare", np.full(n, 1 / n), whole / n, f"on average; {dare:.3g} where kept, else 0"),
        Row("fisher", unknown, unknown, "depends on the importance of each element"),
        Row("wudi", unknown, unknown, "no multiplier in linear layers; 1 / N elsewhere"),
    ]


def rescale_rows(survival: list[SurvivalRow], m: Measured, counts: OverlapCounts, clip: float) -> list[RescaleRow]:
    """RAM+'s rescale between the multipliers that were measured; survival only grows with the multiplier."""
    rows = []
    for dtype in OUTPUTS:
        for t, name in enumerate(m.names):
            known = {1.0: 0.0, **_known_survival(survival, dtype, name), float("inf"): 1.0}
            for rescale in RESCALES:
                scale = 1 + rescale * min(counts.ratio[t], clip)
                low, high = _bounds(known, scale) if counts.unique[t] else (None, None)
                rows.append(
                    RescaleRow(dtype=dtype, agent=name, rescale=rescale, scale=scale, at_least=low, at_most=high)
                )
    return rows


def _known_survival(survival: list[SurvivalRow], dtype: str, agent: str) -> dict[float, float]:
    rows = [row for row in survival if row.dtype == dtype and row.agent == agent]
    return {row.multiplier: row.survived for row in rows if row.survived is not None}


def _bounds(known: dict[float, float], scale: float) -> tuple[float, float]:
    """The survival at the nearest multipliers from below and from above."""
    below = max(multiplier for multiplier in known if multiplier <= scale + SAME)
    above = min(multiplier for multiplier in known if multiplier >= scale - SAME)
    return known[below], known[above]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
