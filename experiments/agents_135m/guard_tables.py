"""What the guard measured at 135M against what was scored, as Markdown for docs/harm.md and numbers for sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypotheses import ADVISED, accused_in, paired
from plans import key
from results import Seed, Value, average
from sets import ABOUT, DAMAGED, HARM
from tables import markdown
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOST = -5.0
"""Points of score from which on a loss is one; errors are 1 to 1.6."""
LIMIT = 0.5
"""Of the guard, in nats an answer."""
BEGIN, END = "<!-- larger -->", "<!-- end of larger -->"
INSTEAD = {"the agent as it is": "wudi_auto", "half its weight": "wudi_auto, damaged x 0.5"}
INSTEAD |= {"left out": "wudi_auto, damaged left out"}


@dataclass(frozen=True)
class Pair:
    """An agent on a skill that is not its own."""

    seed: int | str
    row: dict[str, Any]
    score: Value | None  # its points of score less the base's, none where it was not scored on that skill

    @property
    def lost(self) -> bool:
        """Whether it is known to have lost the skill."""
        return self.score is not None and self.score.mean <= LOST

    @property
    def noise(self) -> bool:
        """Whether it is above the limit and accused of nothing."""
        return bool(self.row["drop"] > LIMIT and not self.row["harmed"])

    @property
    def cells(self) -> list[str]:
        """As a row of the table."""
        row = self.row
        told = "**harm**" if row["harmed"] else ("may be noise" if self.noise else "-")
        drop, kept = f"{row['drop']:.2f} ± {row['error']:.2f}", f"{row['kept_answers']:.0%}"
        return [row["agent"], row["skill"], str(self.seed), drop, kept, self.score.signed if self.score else "", told]


def pairs(seeds: Sequence[Seed]) -> list[Pair]:
    """All that the guard judged, the greatest drop first."""
    found = [
        Pair(seed.name, row, scored(seed, row["agent"], row["skill"]))
        for seed in seeds
        for row in seed.data["training"].get("harm", {}).get("rows", ())
        if not row["own"]
    ]
    return sorted(found, key=lambda pair: -pair.row["drop"])


def scored(seed: Seed, agent: str, skill: str) -> Value | None:
    """What the agent lost or gained there; none where it was asked nothing of that skill."""
    there = seed.has(agent) and bool(seed.right(agent, [skill]))
    return paired(seed, agent, "base", [skill]) if there else None


def guard_table(seeds: Sequence[Seed]) -> str:
    """Every pair above the guard's limit, and every one that lost."""
    head = ["agent", "skill", "seed", "drop", "answers kept", "points of score", "found"]
    shown = [pair.cells for pair in pairs(seeds) if pair.lost or pair.row["drop"] > LIMIT]
    return markdown(head, shown).replace("---:", "---")


def advice_table(seeds: Sequence[Seed]) -> str:
    """What the advice gains over each alternative, all domains, set by set."""
    rows = [
        [f"{ABOUT[name]}, seed {seed.name}", *(gain.signed if gain else "" for gain in gains(seed, name))]
        for name in HARM
        for seed in seeds
    ]
    return markdown(["set", *INSTEAD], rows)


def gains(seed: Seed, name: str) -> list[Value | None]:
    """Of a set, over each of them."""
    return [paired(seed, key(ADVISED, name), key(label, name), list(DOMAINS)) for label in INSTEAD.values()]


def guard_numbers(seeds: Sequence[Seed]) -> dict[str, str]:
    """What sentences say of all seeds."""
    found = pairs(seeds)
    known = [pair for pair in found if pair.score is not None]
    lost = [pair for pair in known if pair.lost]
    worst = min((pair for pair in lost if pair.row["agent"] != DAMAGED), key=_score, default=None)
    half = [gain for seed in seeds for name in HARM if (gain := gains(seed, name)[1])]
    least, most = min(half, key=_mean, default=None), max(half, key=_mean, default=None)
    return {
        "guard_losses": f"{sum(pair.row['harmed'] for pair in lost)} of {len(lost)}",
        "guard_healthy": f"{worst.row['agent']} of seed {worst.seed}" if worst else "(none)",
        "guard_healthy_lost": f"{worst.score} points in {worst.row['skill']}" if worst else "(none)",
        "half_gain": f"{least.signed} to {most.signed}, {average(half).signed} on average" if least and most else "",
        "worst_plain": worst_domain(seeds, "wudi_auto"),
        "worst_advised": worst_domain(seeds, ADVISED),
    }


def worst_domain(seeds: Sequence[Seed], label: str) -> str:
    """Where a rule is furthest below the base in the sets with the damaged agent, beside the domain that broke."""
    cases = {
        (name, seed.name, domain): gap
        for name in HARM
        for seed in seeds
        for domain in DOMAINS
        if domain != seed.data["training"].get(DAMAGED, {}).get("broken")
        and (gap := paired(seed, key(label, name), "base", [domain]))
    }
    if not cases:
        return "(not scored)"
    name, number, domain = min(cases, key=lambda case: cases[case].mean)
    return f"{domain} {cases[name, number, domain].signed} ({ABOUT[name]}, seed {number})"


def kept_table(seeds: Sequence[Seed], registered: dict[str, Any]) -> str:
    """What the advice, what is recommended and what is recommended for a damaged agent gain over all domains."""
    rule, way = registered["recommended"], registered["with_damage"]
    pairs_of = {
        "advice, on wudi_auto": (ADVISED, "wudi_auto"),
        f"{rule}, on wudi_auto": (rule, "wudi_auto"),
        f"advice, on {rule}": (f"{rule}, advised", rule),
        f"{way.removeprefix(rule).strip(', ')}, on {rule}": (way, rule),
    }
    pairs_of = {name: pair for name, pair in pairs_of.items() if len(set(pair)) > 1}
    rows = []
    for name in HARM:
        for seed in seeds:
            keys = [(key(mine, name), key(other, name)) for mine, other in pairs_of.values()]
            found = [paired(seed, mine, other, list(DOMAINS)) for mine, other in keys]
            rows.append([f"{ABOUT[name]}, seed {seed.name}", *(gain.signed if gain else "" for gain in found)])
    return markdown(["set", *pairs_of], rows)


def found_table(seeds: Sequence[Seed]) -> str:
    """Seed by seed: whom the guard accused, and what came of the pairs that were scored, too."""
    head = ["seed", "prompts a skill", "accused", "pairs scored", "lost 5 points or more", "of these: harm"]
    rows = []
    for seed in seeds:
        known = [pair for pair in pairs([seed]) if pair.score is not None]
        lost = [pair for pair in known if pair.lost]
        told = [sum(pair.row["harmed"] for pair in lost), sum(pair.noise for pair in lost)]
        wrongly = sum(pair.row["harmed"] for pair in known if not pair.lost)
        named = ", ".join(sorted(accused_in(seed) or ())) or "nobody"
        other = f"{wrongly} of {len(known) - len(lost)}"
        rows.append([seed.name, asked(seed), named, len(known), len(lost), *told, other])
    return markdown([*head, "may be noise", "harm without such a loss"], rows).replace("---:", "---")


def asked(seed: Seed) -> str:
    """Prompts of a skill, of which the guard took so many."""
    counts = sorted({skill["prompts"] for skill in seed.data["training"]["harm"].get("skills", ())})
    return " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else ""


def section(first: Sequence[Seed], second: Sequence[Seed], registered: dict[str, Any]) -> str:
    """The part of docs/harm.md that comes from the results: of study 1, and of study 2 with more prompts.

    Args:
        first: seeds of study 1.
        second: of study 2.
        registered: what study 2 recommends.
    """
    seeds = [*first, *second]
    harm = [seed.data["training"]["harm"] for seed in seeds]
    seconds = [one["seconds"] for one in harm if "seconds" in one]
    agents = [len({row["agent"] for row in one["rows"]}) for one in harm]
    took = f", in {min(seconds):.0f} to {max(seconds):.0f} s" if seconds else ""
    summary = f"{min(agents)} to {max(agents)} agents a seed were judged on every skill not their own{took} on a GPU."
    told = "Every pair above the limit or known to have lost"
    gained = "Points over all domains that the advice gains on `wudi_auto` with"
    both = "What `keep` ([grams.md](grams.md#what-the-base-must-keep)) gains beside the advice, over all domains:"
    return "\n\n".join(
        [
            *(BEGIN, summary, found_table(seeds)),
            *(f"{told}, 64 prompts a skill:", guard_table(second), f"{told}, 16 prompts a skill:", guard_table(first)),
            *(gained, advice_table(first), both, kept_table(second, registered), END),
        ]
    )


def put_into(page: Path, made: str) -> None:
    """Write it between its marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + made + rest.partition(END)[2], encoding="utf-8")


def _mean(value: Value) -> float:
    return value.mean


def _score(pair: Pair) -> float:
    return pair.score.mean if pair.score else 0.0
