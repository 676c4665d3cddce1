"""Changes of a recipe that take an agent's damage out of a merge: a lower weight, or a rule that skips the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmerge.record import MergeRecord

HALF = 0.5
"""A weight to try first."""
PARTS = {"attention": "*attn*", "mlp": "*mlp*"}
"""Parts of a model by the begin of their kinds' names, and the tensors that are in them."""


def lighter(agent: str) -> tuple[dict[str, Any], str]:
    """Half the weight, and what else to try."""
    text = (
        f"Lower the weight of {agent} (0.5 first), or let rules `skip` it in one part of the model after the other "
        f"(`*mlp*`, then `*attn*`) and score again: where the loss goes and its own skill stays, there skip it."
    )
    return {"agents": {agent: {"weight": HALF}}}, text


def skipping(record: MergeRecord | None, agent: str) -> tuple[dict[str, Any], str] | None:
    """A rule that skips an agent where most of its changes lie; None where the merge's record does not tell.

    Scores can't say in which tensors the damage is. What a record with findings can say is where the agent changed how
    much: the part of the model that holds most of its changes is the first to try.
    """
    if record is None or record.findings is None:
        return None
    changed = dict.fromkeys(PARTS, 0)
    for row in record.findings.modules:
        part = row.kind.split(" ")[0]
        if row.agent == agent and part in changed:
            changed[part] += row.changed
    if not sum(changed.values()):
        return None
    part = max(changed, key=changed.__getitem__)
    share = changed[part] / sum(changed.values())
    rule = {"tensors": PARTS[part], "skip": [agent]}
    text = (
        f"Skip {agent} in `{PARTS[part]}`, where {share:.0%} of its changes in the layers lie, and score again; where "
        f"its own skill goes with it, lower its weight instead (0.5 first)."
    )
    return {"rules": [rule]}, text
