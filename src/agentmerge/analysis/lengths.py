"""Rules of advice on how far the agents went from the base, one beside the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis.evidence import AUTO
from agentmerge.analysis.sentences import advice, listed
from agentmerge.analysis.summaries import densities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.analysis.rows import Advice, Findings

UNEVEN = 4.0
"""Ratio of the lengths of two task vectors."""
FOREIGN = 0.7
"""Median |tau| over median |weight| of an agent that changed nearly all: about 0.01 after supervised training, up to
0.3 after adapters at a high rate, and 1.4 where its base is another one."""
WHOLE = 0.8
"""Density of such an agent, at least."""
OUTLIER = 3.0
"""Ratio of the longest task vector to the next, of three or more."""


def foreign(found: Findings) -> Iterator[Advice]:
    """Changes that are as large as the weights themselves: of an agent of another base."""
    usual, density = _median(found), densities(found)
    for row in found.totals:
        size = row.magnitude["0.5"] or 0.0
        if usual and density[row.agent] >= WHOLE and size >= FOREIGN * usual:
            yield advice(
                "foreign",
                [row.agent],
                f"It changed {density[row.agent]:.1%} of the elements, by about {size / usual:.1f} times what the",
                "base's weights are; RL changes few, by less than a twentieth. So differ models that have nothing but",
                "their shapes in common: it was probably trained from another base, and a merge of it is noise. Give",
                "its own base, or leave it out.",
            )


def _median(found: Findings) -> float:
    """Of |base|, by its powers of two: half of the elements lie below."""
    below, sizes = 0, {row.exponent: row.elements for row in found.bins}
    half = sum(sizes.values()) / 2
    for exponent in sorted(sizes):
        if below + sizes[exponent] >= half > below:
            return float(2.0 ** (exponent + (half - below) / sizes[exponent]))
        below += sizes[exponent]
    return 0.0


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
