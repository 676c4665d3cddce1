"""Rules of advice on how far the agents went from the base, one beside the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis.evidence import AUTO
from agentmerge.analysis.sentences import advice, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.analysis.rows import Advice, Findings

UNEVEN = 4.0
"""Ratio of the lengths of two task vectors."""
OUTLIER = 3.0
"""Ratio of the longest task vector to the next, of three or more."""


def uneven(found: Findings) -> Iterator[Advice]:
    """One agent's task vector is much longer than another's."""
    norms = {row.agent: row.norm for row in found.totals if row.norm}
    if len(norms) > 1 and max(norms.values()) > UNEVEN * min(norms.values()):
        small, large = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
        yield advice(
            "uneven",
            [small, large],
            f"The task vector of {large} is {norms[large] / norms[small]:.1f} times as long as that of {small}.",
            f"{AUTO.name} keeps each agent's own change whole, even or not. Score {small} by itself after the merge.",
            methods=(AUTO,),
        )


def outlier(found: Findings) -> Iterator[Advice]:
    """One agent went much further than all others: it may have lost what the base could do."""
    norms = {row.agent: row.norm for row in found.totals if row.norm}
    *_, rest, next_, far = ["", "", "", *sorted(norms, key=norms.__getitem__)]
    if rest and norms[far] >= OUTLIER * norms[next_]:
        wide = {row.agent: row.share or 0.0 for row in found.steps if row.steps == "9+" and row.agent in (far, next_)}
        yield advice(
            "outlier",
            [far],
            f"Its task vector is {norms[far] / norms[next_]:.1f} times as long as the next, and so many of its changes",
            f"are 9 steps of the stored numbers or more: {listed(wide, 0)}. So look agents that were trained until",
            "they lost what the base could do, whose damage RAM and TIES keep whole. Weights alone can't tell it: ask",
            f"`agentmerge harm` before you merge {far}.",
        )
