"""What the rows of a full probe add up to over the whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentmerge.analysis.rows import Findings, PairRow


def densities(found: Findings) -> dict[str, float]:
    """Each agent's density over the model."""
    result = {}
    for name in found.agents:
        rows = [row for row in found.modules if row.agent == name]
        result[name] = sum(row.changed for row in rows) / max(sum(row.elements for row in rows), 1)
    return result


def changed_by_kind(found: Findings, agent: str) -> dict[str, int]:
    """An agent's changed elements by kind of module, where there are any."""
    kinds: dict[str, int] = {}
    for row in found.modules:
        if row.agent == agent and row.changed:
            kinds[row.kind] = kinds.get(row.kind, 0) + row.changed
    return kinds


def model_pairs(found: Findings) -> list[PairRow]:
    """Every pair over the whole model."""
    return [pair for pair in found.pairs if pair.scope == "model"]
