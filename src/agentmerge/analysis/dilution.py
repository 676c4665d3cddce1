"""What each method would make of each agent's unique changes, and of its task vector as a whole, before any merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.analysis.rows import DilutionRow, RescaleRow, SurvivalRow
from agentmerge.methods.ram import linear_scales
from agentmerge.methods.registry import resolve_method
from agentmerge.survey.full.definitions import OUTPUTS

if TYPE_CHECKING:
    from agentmerge.analysis.measured import Measured
    from agentmerge.survey.overlap import OverlapCounts

RESCALES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
SAME = 1e-6
"""Multipliers as close as this are one."""
USUAL: dict[str, str | dict[str, Any]] = {
    "ram": "ram",
    "ram_plus": "ram_plus",
    "ram_plus_soft": "ram_plus_soft",
    "ram_plus, rescale auto": "ram_plus_auto",
    "calibrate around ram": {"name": "calibrate", "then": "ram"},
    "task_arithmetic": "task_arithmetic",
    "task_arithmetic, scale 1": {"name": "task_arithmetic", "scale": 1},
    "linear": "linear",
    "ties": "ties",
    "dare": "dare",
    "breadcrumbs": "breadcrumbs",
    "della": "della",
    "sce": "sce",
    "multislerp": "multislerp",
    "model_stock": "model_stock",
    "disentangle around task_arithmetic": "disentangle",
    "fisher": "fisher",
    "regmean": "regmean",
    "esm": "esm",
    "wudi": "wudi",
    "resmerge": "resmerge",
    "tsv_m": "tsv_m",
    "iso_c": "iso_c",
    "iso_cts": "iso_cts",
    "svc around task_arithmetic": "svc",
}
"""The rows by their labels: whom a report compares."""


def dilution_rows(m: Measured, counts: OverlapCounts) -> list[DilutionRow]:
    """What every method says of itself at its usual settings, agents of equal weight, in float32."""
    rows = []
    for label, settings in USUAL.items():
        with np.errstate(all="ignore"):
            found = resolve_method(settings).dilution(m.names, counts, m.energy)
        for name, multiplier, retention in zip(m.names, found.multiplier, found.retention, strict=True):
            numbers = {"multiplier": _known(multiplier), "retention": _known(retention)}
            rows.append(DilutionRow(method=label, agent=name, note=found.note, **numbers))
    return rows


def rescale_rows(survival: list[SurvivalRow], m: Measured, counts: OverlapCounts, clip: float) -> list[RescaleRow]:
    """RAM+'s rescale between the multipliers that were measured; survival only grows with the multiplier."""
    scales = {rescale: linear_scales(counts, rescale, clip) for rescale in RESCALES}
    rows = []
    for dtype in OUTPUTS:
        for t, name in enumerate(m.names):
            known = {1.0: 0.0, **_known_survival(survival, dtype, name), float("inf"): 1.0}
            for rescale in RESCALES:
                scale = scales[rescale][t]
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
