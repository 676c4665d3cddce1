"""What a survey found, rule by rule, on the screen: on the agents' domains, and on what no agent was trained on.

    python experiments/agents_135m/look.py --seed 4 [--results experiments/agents_135m/results]

`own` is against the better of tuned TA and TIES, over the sets without a damaged agent; `untrained` against the base,
over the sets in which some domain has no agent, and its worst single domain; `damaged` counts the domains of the sets
with a damaged agent that are not above both the base and plain averaging.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import RESULTS, Seed, Value, read_seeds
from tables import markdown
from tables2 import below, ends, own_gaps, single_gaps

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
    own, left = own_gaps(seed, label, TUNED), {name: gap for name, gap in single_gaps(seed, label).items() if gap}
    sets = {place.rpartition(",")[0] for place in left}
    place = -sum(gap.mean for gap in left.values()) / len(left) if left else 1e3
    own_count = sum(gap is not None for gap in own.values())
    return place, [label, str(own_count), *told(own), str(len(sets)), *told(left), below(seed, label)]


def told(gaps: dict[str, Value | None]) -> list[str]:
    """Mean and worst case."""
    found = ends(gaps)
    return [f"{found.mean.mean:+.1f}", found.cells[1]] if found else ["", ""]


if __name__ == "__main__":
    main()
