"""Whether what registered.json says holds on the seeds that confirm: mechanically, from the results alone.

Every set of every seed is a case of its own; the case nearest to refuting decides, whatever its error. What lacks a
score leaves a hypothesis open, never passed. Where two readings of the baseline are possible the harder one counts: the
recommended rule is held against the family that is better on test, RAM against the one that is better on dev.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plans import key
from results import Seed, Value, average
from sets import ABOUT, HARM, domains_of, untrained
from tasks import DOMAINS

REGISTERED, REGISTERED2 = (Path(__file__).parent / f"registered{study}.json" for study in ("", "2"))
ADVISED = "wudi_auto, advised"


@dataclass(frozen=True)
class Verdict:
    """What came of a hypothesis."""

    name: str
    text: str
    holds: bool | None  # none: scores lack
    worst: str  # the case that decides, in words
    cases: int = 0
    against: int = 0  # cases that refute it
    lacking: tuple[str, ...] = field(default=())

    @property
    def word(self) -> str:
        """Holds, fails or open."""
        return {True: "holds", False: "fails", None: "open"}[self.holds]


Cases = dict[str, Value | None]


def read_registered(path: Path = REGISTERED) -> dict[str, Any]:
    """What was said before; of the first study unless another file is named."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def confirming(seeds: Sequence[Seed], registered: dict[str, Any]) -> list[Seed]:
    """The seeds that played no part in choosing."""
    return [seed for seed in seeds if seed.name in registered["confirmation_seeds"]]


def taking_part(seeds: Sequence[Seed], registered: dict[str, Any]) -> list[Seed]:
    """Those that choose and those that confirm: a study's, of all that were saved."""
    named = [*registered["selection_seeds"], *registered["confirmation_seeds"]]
    return [seed for seed in seeds if seed.name in named]


def healthy_sets(registered: dict[str, Any]) -> list[str]:
    """The registered sets without a damaged agent."""
    return [name for name in registered["sets"] if name not in HARM]


def harm_sets(registered: dict[str, Any]) -> list[str]:
    """Those with one."""
    return [name for name in registered["sets"] if name in HARM]


def verdicts(seeds: Sequence[Seed], registered: dict[str, Any]) -> list[Verdict]:
    """Of every hypothesis, in their order."""
    these = confirming(seeds, registered)
    complete = len(these) == len(registered["confirmation_seeds"])
    return [judge(one, these, registered, complete=complete) for one in registered["hypotheses"]]


def judge(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any], *, complete: bool) -> Verdict:
    """One of them: its cases against its margin; without one, a case must be above 0."""
    cases = KINDS[hypothesis["kind"]](hypothesis, seeds, registered) if seeds else {}
    there = {name: value for name, value in cases.items() if value is not None}
    lacking = tuple(name for name in cases if name not in there)
    margin = hypothesis.get("margin", 0.0)
    good = {name: value.mean > margin if margin == 0 else value.mean >= margin for name, value in there.items()}
    worst = min(there, key=lambda name: there[name].mean, default=None)
    size = f": {there[worst].signed}" if worst and hypothesis["kind"] != "accused" else ""
    told = f"{worst}{size}" if worst else "no scores"
    against = list(good.values()).count(False)
    holds = False if against else (True if there and complete and not lacking else None)
    return Verdict(hypothesis["id"], hypothesis["text"], holds, told, len(cases), against, lacking)


def worst(_: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """The gap of the recommended rule to the tuned baseline in every healthy set."""
    return gaps_of(registered["recommended"], seeds, registered)


def gaps_of(label: str, seeds: Sequence[Seed], registered: dict[str, Any], *, strong: bool = True) -> Cases:
    """The same of any rule."""
    return {
        case(name, seed): seed.gap(label, registered["tuned"], name, strong=strong)
        for name in healthy_sets(registered)
        for seed in seeds
    }


def average_gap(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """The mean of these gaps."""
    return {"mean": mean_of_cases(worst(hypothesis, seeds, registered))}


def below(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """How far some rules are below the tuned baseline on average, positive where they are."""
    found: Cases = {}
    for label in hypothesis["labels"]:
        mean = mean_of_cases(gaps_of(label, seeds, registered, strong=False))
        found[f"{label}, points below"] = Value(-mean.mean, mean.error) if mean else None
    return found


def domains(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """Every domain of what is recommended for a damaged agent, less the base and less plain averaging."""
    label = registered.get("with_damage", ADVISED)
    return {
        f"{case(name, seed)}, {domain}, above {what}": paired(seed, key(label, name), other, [domain])
        for name in hypothesis["sets"]
        for seed in seeds
        for domain in DOMAINS
        for what, other in (("base", "base"), ("mean", key("mean", name)))
    }


def advice(_: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """What the advice gains over all domains."""
    plain = registered["recommended"]
    return {
        case(name, seed): paired(seed, key(f"{plain}, advised", name), key(plain, name), list(DOMAINS))
        for name in harm_sets(registered)
        for seed in seeds
    }


def gain(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """The recommended rule less others, on some domains of every set.

    Fields of the hypothesis: `over`, labels of rules, or base; `on`: own, untrained or all domains; `sets`, left out:
    all that are registered; `each`: every domain is a case; `average`: the mean of all cases is the only one.
    """
    found: Cases = {}
    for name in hypothesis.get("sets", registered["sets"]):
        mine, on = key(rule_for(name, registered), name), ON[hypothesis["on"]](name)
        for seed in seeds:
            for other in hypothesis["over"]:
                theirs = other if other == "base" else key(other, name)
                for part in [[domain] for domain in on] if hypothesis.get("each") else [on] if on else []:
                    place = f", {part[0]}" if hypothesis.get("each") else ""
                    found[f"{case(name, seed)}{place}, above {other}"] = paired(seed, mine, theirs, part)
    return {"mean": mean_of_cases(found)} if hypothesis.get("average") else found


def rule_for(name: str, registered: dict[str, Any]) -> str:
    """What is recommended for a set."""
    plain: str = registered["recommended"]
    return registered.get("with_damage", plain) if name in HARM else plain


def rounding(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """What stochastic rounding gains over rounding to the nearest, by rule: the mean over sets and seeds."""
    found: Cases = {}
    for label in hypothesis["labels"]:
        gains = {
            case(name, seed): paired(seed, key(label, name), key(label, name, "nearest"), domains_of(name))
            for name in hypothesis.get("sets", registered["sets"])
            for seed in seeds
        }
        found[label] = mean_of_cases(gains)
    return found


def accused(hypothesis: dict[str, Any], seeds: Sequence[Seed], _: dict[str, Any]) -> Cases:
    """1 where the guard accuses these agents and no others, -1 where it does not."""
    found: Cases = {}
    for seed in seeds:
        named = accused_in(seed)
        right = None if named is None else named == set(hypothesis["agents"])
        told = ", ".join(sorted(named or ())) or "nobody"
        found[f"seed {seed.name}, {told}"] = None if right is None else Value(1.0 if right else -1.0, 0.0)
    return found


def accused_in(seed: Seed) -> set[str] | None:
    """Agents of which the guard says that they damage something; none where it was not asked."""
    rows = seed.data["training"].get("harm", {}).get("rows")
    return None if rows is None else {row["agent"] for row in rows if row["harmed"]}


def case(name: str, seed: Seed) -> str:
    """A set of a seed in words."""
    return f"{ABOUT[name]}, seed {seed.name}"


def paired(seed: Seed, mine: str, other: str, on: Sequence[str]) -> Value | None:
    """The difference of two models on these domains; none where one was not scored on all of them."""
    there = seed.has(mine, domains=on) and seed.has(other, domains=on)
    return seed.mean(mine, on, against=other) if there else None


def mean_of_cases(cases: Cases) -> Value | None:
    """Their mean; none where one lacks."""
    there = [value for value in cases.values() if value is not None]
    return average(there) if there and len(there) == len(cases) else None


KINDS: dict[str, Callable[[dict[str, Any], Sequence[Seed], dict[str, Any]], Cases]] = {
    "worst": worst,
    "average": average_gap,
    "below": below,
    "domains": domains,
    "advice": advice,
    "accused": accused,
    "gain": gain,
    "rounding": rounding,
}
ON: dict[str, Callable[[str], list[str]]] = {
    "own": domains_of,
    "untrained": untrained,
    "all": lambda _: list(DOMAINS),
}
