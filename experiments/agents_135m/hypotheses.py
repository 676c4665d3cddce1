"""Whether what registered.json says holds on the seeds that confirm: mechanically, from the results alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plans import key
from results import Seed, Value, average, over
from sets import ABOUT, HARM, HEALTHY, SETS, domain_of
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REGISTERED = Path(__file__).parent / "registered.json"


@dataclass(frozen=True)
class Verdict:
    """What came of a hypothesis."""

    name: str
    says: str
    holds: bool | None  # none: scores lack
    worst: str  # the case that decides, in words
    lacking: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """Holds, fails or open."""
        return {True: "holds", False: "fails", None: "open"}[self.holds]


def read_registered() -> dict[str, Any]:
    """What was said before."""
    return dict(json.loads(REGISTERED.read_text(encoding="utf-8")))


def confirming(seeds: Sequence[Seed], registered: dict[str, Any]) -> list[Seed]:
    """The seeds that played no part in choosing."""
    return [seed for seed in seeds if seed.number in registered["confirmation_seeds"]]


def verdicts(seeds: Sequence[Seed], registered: dict[str, Any]) -> list[Verdict]:
    """Of every hypothesis, in their order; open where a seed or a score lacks, never passed by what lacks."""
    these = confirming(seeds, registered)
    complete = len(these) == len(registered["confirmation_seeds"])
    return [judge(one, these, registered, complete=complete) for one in registered["hypotheses"]]


def judge(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any], *, complete: bool) -> Verdict:
    """One of them: its cases against its threshold."""
    cases = CASES[hypothesis["kind"]](hypothesis, seeds, registered) if seeds else {}
    there = {name: value for name, value in cases.items() if value is not None}
    lacking = tuple(name for name in cases if name not in there)
    least, strict = hypothesis.get("at_least", 0.0), "at_least" not in hypothesis
    worst = min(there, key=lambda name: there[name].mean, default=None)
    holds: bool | None = None
    if worst is not None:
        holds = there[worst].mean > least if strict else there[worst].mean >= least
        if holds and (lacking or not complete):
            holds = None
    told = f"{worst}: {there[worst].signed}" if worst else "no scores"
    return Verdict(hypothesis["name"], hypothesis["says"], holds, told, lacking)


Cases = dict[str, Value | None]


def every_set(_: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """The gap to the tuned baseline in every healthy set."""
    rule, tuned = registered["recommended"], registered["tuned"]
    return {ABOUT[name]: over(seeds, partial(Seed.gap, label=rule, families=tuned, name=name)) for name in HEALTHY}


def mean_of_sets(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """The mean of these gaps."""
    return {"mean": mean_of_cases(every_set(hypothesis, seeds, registered))}


def above(hypothesis: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """Each domain of each set with a damaged agent, against base or another rule."""
    found: Cases = {}
    for name in HARM:
        mine, trained = key(registered["advised"], name), {domain_of(agent) for agent in SETS[name]}
        other = "base" if hypothesis["against"] == "base" else key(hypothesis["against"], name)
        for domain in DOMAINS:
            if (domain in trained) == (hypothesis["domains"] == "trained"):
                found[f"{ABOUT[name]}, {domain}"] = over(seeds, paired(mine, other, [domain]))
    return found


def advice(_: dict[str, Any], seeds: Sequence[Seed], registered: dict[str, Any]) -> Cases:
    """What the advice gains over all domains, mean of the sets."""
    cases: Cases = {}
    for name in HARM:
        mine, other = key(registered["advised"], name), key(registered["recommended"], name)
        cases[name] = over(seeds, paired(mine, other, list(DOMAINS)))
    return {"mean": mean_of_cases(cases)}


def paired(mine: str, other: str, domains: list[str]) -> Callable[[Seed], Value | None]:
    """The difference of two models on these domains, in one seed."""
    return lambda seed: seed.mean(mine, domains, against=other) if seed.has(mine) and seed.has(other) else None


def mean_of_cases(cases: Cases) -> Value | None:
    """Their mean; none where one lacks."""
    there = [value for value in cases.values() if value is not None]
    return average(there) if there and len(there) == len(cases) else None


CASES: dict[str, Callable[[dict[str, Any], Sequence[Seed], dict[str, Any]], Cases]] = {
    "every set": every_set,
    "mean of sets": mean_of_sets,
    "above": above,
    "advice": advice,
}
