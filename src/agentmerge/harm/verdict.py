"""Plain rules: what the measured drops say of the agents, and what to change; in the words of `eval compare`."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from agentmerge.eval.compare.rows import Judgement
from agentmerge.eval.compare.words import listed
from agentmerge.harm.remedies import best, kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.harm.record import HarmRow, RemedyRow

ALPHA = 0.05
"""Probability that one of the comparisons calls noise a drop."""
MOST = 4
"""Rules that a sentence names."""


def beyond(comparisons: int) -> float:
    """Standard errors that a drop must exceed, one-sided, by Bonferroni for so many comparisons."""
    return NormalDist().inv_cdf(1 - ALPHA / max(comparisons, 1))


def judge(rows: Sequence[HarmRow], remedies: Sequence[RemedyRow], limit: float) -> list[Judgement]:
    """What is to be said of every agent, the harmful ones first."""
    agents = list(dict.fromkeys(row.agent for row in rows))
    found = [*every(agents, rows), *(one for agent in agents for one in broke(agent, rows, remedies))]
    found += [one for agent in agents for one in unclear(agent, rows, limit)]
    return found or [_harmless(rows, limit)]


def every(agents: Sequence[str], rows: Sequence[HarmRow]) -> Iterator[Judgement]:
    """Nobody is left to compare with: the fault may be elsewhere."""
    if len(agents) > 1 and {row.agent for row in rows if row.harmed} == set(agents):
        text = (
            "Every agent is harmful. Is this the base that they were trained from, and are the prompts what it is "
            "asked (with its chat template, `--chat`)? `agentmerge probe` tells more of the base."
        )
        yield Judgement(rule="every", rows=list(agents), units=[], text=text)


def broke(agent: str, rows: Sequence[HarmRow], remedies: Sequence[RemedyRow]) -> Iterator[Judgement]:
    """An agent that lost what the base could do."""
    harmed = sorted((row for row in rows if row.agent == agent and row.harmed), key=lambda row: -row.drop)
    if harmed:
        change, words = cure(agent, [row for row in remedies if row.agent == agent])
        text = f"{agent} broke what the base could do: {listed(map(_loss, harmed))}. {words}"
        yield Judgement(rule="broke", rows=[agent], units=[row.skill for row in harmed], text=text, change=change)


def unclear(agent: str, rows: Sequence[HarmRow], limit: float) -> Iterator[Judgement]:
    """Drops above the limit that may be noise."""
    found = [row for row in rows if row.agent == agent and not row.own and not row.harmed and row.drop > limit]
    if found:
        text = f"{agent} may have lost something, but that may be noise: {listed(map(_loss, found))}. Ask more prompts."
        yield Judgement(rule="unclear", rows=[agent], units=[row.skill for row in found], text=text)


def cure(agent: str, remedies: Sequence[RemedyRow]) -> tuple[dict[str, Any], str]:
    """What to do about an agent's damage, by what was measured of it."""
    chosen = best(remedies)
    if chosen is None:
        words = "Nothing that was tried takes the damage out and keeps enough of it: leave it out."
        return {"leave_out": [agent]}, words
    left = f"of the damage {max(chosen.left, 0):.0%} is left ({chosen.drop:+.2f} nats an answer at most)"
    what = "of its task vector" if chosen.own is None else "of what it does for its own skill"
    effect = f"with this agent alone, {left} and {kept(chosen):.0%} {what} stays"
    if "agents" in chosen.change:
        return chosen.change, f"Lower its weight to {chosen.change['agents'][agent]['weight']:g}: {effect}."
    globs = [f"`{rule['tensors']}`" for rule in chosen.change["rules"]]
    shown = [*globs[:MOST], f"{len(globs) - MOST} more"] if len(globs) > MOST else globs
    return chosen.change, f"Skip it in {listed(shown)}: {effect}."


def _harmless(rows: Sequence[HarmRow], limit: float) -> Judgement:
    judged = [row for row in rows if not row.own]
    worst = max(judged, key=lambda row: row.drop, default=None)
    if worst is None:
        text = "Every skill is an agent's own: there is nothing to judge. Add prompts of what the base must keep."
    else:
        text = f"No agent damages what the base could do beyond {limit:g} nats an answer; the most is {_loss(worst)}."
        text = text.replace("is ", f"is {worst.agent}'s ", 1) if len({row.agent for row in judged}) > 1 else text
    return Judgement(rule="harmless", rows=[], units=[], text=text)


def _loss(row: HarmRow) -> str:
    skill = row.skill or "these prompts"
    return (
        f"{skill} by {row.drop:.2f} +- {row.error:.2f} nats an answer, {row.kept_answers:.0%} of the answers and "
        f"{row.kept_tokens:.0%} of their tokens kept"
    )
