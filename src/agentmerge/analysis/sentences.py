"""How rules of advice are put into words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis.rows import Advice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.analysis.evidence import Tried


def advice(rule: str, agents: list[str], *sentences: str, methods: Sequence[Tried] = ()) -> Advice:
    """One rule that applies, in a few sentences, and the methods that they recommend."""
    return Advice(rule=rule, agents=agents, text=" ".join(sentences), methods=[tried.method for tried in methods])


def listed(shares: Mapping[str, float], digits: int = 1) -> str:
    """For example "code 3.2%, tool 46.2%"."""
    return ", ".join(f"{name} {share:.{digits}%}" for name, share in shares.items())
