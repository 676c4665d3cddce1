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
FOREIGN = 0.5
"""Length of a task vector over that of the base's weights: 0.0001 to 0.05 after RL, up to 0.3 after other training, 1.4
where the base is another one; in a small model less, as its norms are much of its length and alike in all models."""
OUTLIER = 3.0
"""Ratio of the longest task vector to the next, of three or more."""


def foreign(found: Findings) -> Iterator[Advice]:
    """A task vector that is about as long as the base itself."""
    length = _length(found)
    far = {row.agent: row.norm / length for row in found.totals if row.norm and row.norm >= FOREIGN * length > 0}
    for name, ratio in far.items():
        yield advice(
            "foreign",
            [name],
            f"The task vector of {name} is about {ratio:.1f} times as long as the base's weights, where RL gives less",
            "than a twentieth: it was probably trained from another base. A merge of it is noise: give its own base,",
            "or leave it out.",
        )


def _length(found: Findings) -> float:
    """The norm of the base's weights, by their powers of two: within 30 %, about 5 % where sizes vary.

    The mean square of numbers that are spread evenly between 2^e and 2^(e + 1) is 7/3 * 4^e.
    """
    sizes = {row.exponent: row.elements for row in found.bins if -127 < row.exponent < 128}
    sampled = sum(count * 7 / 3 * 4.0**exponent for exponent, count in sizes.items())
    return float((sampled * found.elements / max(found.sampled_elements, 1)) ** 0.5)


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
