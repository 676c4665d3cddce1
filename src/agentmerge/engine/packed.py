"""Whether packed agents became what was packed: their fingerprints, once every merged number of them was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import SourceError
from agentmerge.sources.packed import PackedWeights
from agentmerge.survey.integrity import Integrity

if TYPE_CHECKING:
    from agentmerge.engine.plan import Plan
    from agentmerge.survey.statistic import Survey


def check_packed(plan: Plan, survey: Survey) -> None:
    """Raise SourceError where a packed agent has other numbers than were packed: over another base, or damaged.

    An agent that is seen through a view (renamed tensors, other rows), or that lacks a tensor, is not compared; of its
    base a sample was, when it was opened.

    Args:
        plan: the sources.
        survey: the answers about all merged elements.
    """
    found = survey.total(Integrity()).fingerprint
    for t, name in enumerate(plan.names):
        source = plan.sources[name]
        weights = source.weights
        if not isinstance(weights, PackedWeights) or any(name in job.absent for job in plan.merged):
            continue
        expected = sum(int(weights.packed[job.name].print, 16) for job in plan.merged) % 2**64
        if int(found[1 + t]) != expected:
            raise SourceError(
                f"agent '{name}' ({source.text}): over this base its numbers are not those that were packed",
                expected=f"the fingerprint {expected:016x}",
                todo="Give the base that it was packed with; if it is that, the file is damaged: pack it again.",
                where=source.where,
            )
