"""Tables of both studies together: what was said before and whether it holds, and what each step took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tables import markdown
from tables2 import called

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypotheses import Verdict
    from results import Seed

SAID = {
    "every set": "healthy sets: untuned, at most {points} points below the better of tuned TA and TIES in every one",
    "average": "at least {points} points above it on average",
    "every domain, seven agents": "a damaged agent among seven: every domain above base and above mean",
    "every domain, few agents": "a damaged agent among three and four: the same",
    "damaged, few agents, nearly": "there no domain more than {points} points below base or mean",
    "untrained kept": "healthy sets: no domain without an agent more than {points} points below the base",
    "untrained kept on average": "on average these are not below the base",
    "keep keeps": "`keep` gains at least {points} points on average where no agent was trained",
    "keep costs nothing": "and costs at most {points} on the domains of the agents",
    "keep costs little": "and costs at most {points} on the domains of the agents",
    "all domains": "over all seven domains above RAM, RAM+, TIES, the plain sum and the mean in every set",
    "guard accuses": "the guard accuses the damaged agent and no other",
    "advice helps": "the guard's advice raises the mean of all domains",
    "rounding": "rounding to the nearest loses against stochastic rounding, each rule's average",
    "paper's RAM": "RAM and RAM+ at the paper's settings are below the tuned baseline on average",
}
"""What was said before in a few words, by the names of the hypotheses, in order."""
SAME = {"damaged, seven agents": "every domain, seven agents", "damaged, few agents": "every domain, few agents"}
"""What the second registration calls otherwise."""


def said_table(first: Sequence[Verdict], second: Sequence[Verdict], hypotheses: Sequence[dict[str, Any]]) -> str:
    """What was said before both studies, and what came of it.

    Args:
        first: of study 1.
        second: of study 2.
        hypotheses: as both registrations have them, for their margins.
    """
    studies = [{SAME.get(one.name, one.name): one for one in found} for found in (first, second)]
    points = {SAME.get(one["id"], one["id"]): f"{abs(one.get('margin', 0.0)):g}" for one in hypotheses}
    there = {name: one.text for found in studies for name, one in found.items()}
    words = {
        name: text.format(points=points[name]).replace(" 1 points", " 1 point")
        for name, text in SAID.items()
        if name in there
    }
    words |= {name: text for name, text in there.items() if name not in words}
    rows = [[text, *(said(found.get(name)) for found in studies)] for name, text in words.items()]
    return markdown(["said before", "study 1", "study 2"], rows).replace("---:", "---")


def said(verdict: Verdict | None) -> str:
    """A cell."""
    if verdict is None:
        return "not asked"
    lacking = f", {len(verdict.lacking)} not scored" if verdict.lacking else ""
    count = f"{verdict.against} of {verdict.cases - len(verdict.lacking)} against{lacking}"
    return f"**{verdict.word}** ({count}); {verdict.worst}"


def cost_table(seeds: Sequence[Seed]) -> str:
    """GPU seconds by step and seed."""
    steps = {"cold": "base", "agents": "agents", "grams": "Gram matrices"}
    times = [seed.data["training"].get("times", {}) for seed in seeds]
    rows = [[about, *(gpu_seconds([one[n]] if n in one else []) for one in times)] for n, about in steps.items()]
    guards = [seed.data["training"].get("harm", {}).get("seconds") for seed in seeds]
    rows.append(["the guard", *("" if one is None else f"{one:.0f}" for one in guards)])
    rows.append(["merges and scores", *(gpu_seconds(seed.data["runs"]) for seed in seeds)])
    scored = [sum(run["scored"] for run in seed.data["runs"]) for seed in seeds]
    rows.append(["models merged and scored", *(str(count or "") for count in scored)])
    return markdown(["GPU seconds", *(called(seed) for seed in seeds)], rows)


def gpu_seconds(parts: Sequence[dict[str, Any]]) -> str:
    """Of some runs together; nothing where none was noted."""
    return f"{sum(one['gpu_seconds'] for one in parts):.0f}" if parts else ""
