"""What a survey found, rule by rule, on the screen: on the agents' domains, and on what no agent was trained on.

    python experiments/agents_135m/look.py --seed 4 [--results experiments/agents_135m/results]

`own` is against the better of tuned TA and TIES, over the sets without a damaged agent; `untrained` against the base,
over the sets in which some domain has no agent, and its worst single domain; `damaged` counts the domains of the sets
with a damaged agent that are not above both the base and plain averaging.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hypotheses import paired
from plans import key
from results import RESULTS, Seed, Value, read_seeds
from sets import ABOUT, HARM, HEALTHY, SETS, untrained
from tables import markdown
from tasks import DOMAINS

TUNED = ("TA", "TIES")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", required=True, help='as a registration calls it: 4, or "gemma3 1"')
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    seed = next((one for one in read_seeds(given.results) if str(one.name) == given.seed), None)
    if seed is None:
        raise SystemExit(f"{given.results}: no results of seed {given.seed}")
    print(table(seed))


def table(seed: Seed) -> str:
    """A row for each rule that was rounded stochastically, those first that lose least where no agent was trained."""
    merges = seed.data["merges"].values()
    labels = dict.fromkeys(one["label"] for one in merges if one["output"] == "stochastic" and "family" not in one)
    rows = sorted((row(seed, label) for label in labels), key=lambda found: found[0])
    head = ["rule", "own: sets", "mean", "worst", "untrained: sets", "mean", "worst", "damaged: below"]
    return markdown(head, [cells for _, cells in rows])


def row(seed: Seed, label: str) -> tuple[float, list[str]]:
    """Its place and its cells."""
    own = {ABOUT[name]: gap for name in HEALTHY if (gap := seed.gap(label, TUNED, name))}
    left = {
        f"{ABOUT[name]}, {domain}": gap
        for name in SETS
        for domain in untrained(name)
        if (gap := paired(seed, key(label, name), "base", [domain]))
    }
    sets = {place.rpartition(",")[0] for place in left}
    place = -sum(gap.mean for gap in left.values()) / len(left) if left else 1e3
    return place, [label, str(len(own)), *ends(own), str(len(sets)), *ends(left), below(seed, label)]


def ends(found: dict[str, Value]) -> list[str]:
    """Mean and worst case."""
    if not found:
        return ["", ""]
    worst = min(found, key=lambda place: found[place].mean)
    mean = sum(gap.mean for gap in found.values()) / len(found)
    return [f"{mean:+.1f}", f"{found[worst].signed} ({worst})"]


def below(seed: Seed, label: str) -> str:
    """Domains of the sets with a damaged agent that are not above base and mean, of those that were scored."""
    others = {name: ("base", key("mean", name)) for name in HARM}
    gaps = [
        [paired(seed, key(label, name), other, [domain]) for other in others[name]]
        for name in HARM
        for domain in DOMAINS
    ]
    there = [[gap.mean for gap in pair if gap] for pair in gaps if all(pair)]
    return f"{sum(min(pair) <= 0 for pair in there)} of {len(there)}" if there else ""


if __name__ == "__main__":
    main()
