"""Write docs/evidence.md, its tables, those of docs/harm.md and the figures from results, registrations and texts.

python experiments/agents_135m/report.py [--docs docs] [--results experiments/agents_135m/results]
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import both_tables
import parts2
import parts_methods
import tables
from guard_tables import guard_numbers, put_into, section
from hypotheses import ADVISED, REGISTERED2, confirming, paired, read_registered, taking_part, verdicts
from plans import key
from results import RESULTS, Seed, Value, average, over, read_seeds
from rules import RULES
from sets import ABOUT, DAMAGED, HARM, HEALTHY

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PAGES = {
    "evidence.md": "findings.md",
    "evidence-135m.md": "findings-tables.md",
    "evidence-135m-2.md": "findings-tables2.md",
    "evidence-135m-methods.md": "findings-methods.md",
}
HARM_PAGE = "harm.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    studies = [read_registered(), read_registered(REGISTERED2)]
    every = read_seeds(given.results)
    seeds = [taking_part(every, registered) for registered in studies]
    last = [seed for seed in every if seed.name in parts_methods.SEEDS]
    if not all([*seeds, last]):
        raise SystemExit(f"{given.results}: no seed of one of the studies, or none of every method, has been scored")
    import figures
    import figures2

    given.docs.mkdir(parents=True, exist_ok=True)
    folder = given.docs / "figures" / "evidence-135m"
    figures.draw_all(seeds[0], studies[0], folder)
    figures2.draw_all(seeds[1], studies[1], folder)
    figures2.draw_methods(last[0], folder)
    for page, made in pages(every, *studies).items():
        (given.docs / page).write_text(made, encoding="utf-8")
    if (given.docs / HARM_PAGE).exists():
        put_into(given.docs / HARM_PAGE, guard_part(every, *studies))
    for number, (these, registered) in enumerate(zip(seeds, studies, strict=True), 1):
        for one in verdicts(these, registered):
            print(f"study {number}: {one.word:6} {one.name}: {one.worst}{tables.missing(one)}")


def pages(seeds: list[Seed], first: dict[str, Any], second: dict[str, Any]) -> dict[str, str]:
    """The pages by their names: what the texts call {name} is put in its place.

    Args:
        seeds: of both studies, and what scored every method.
        first: what was said before the first.
        second: before the second.
    """
    one, two = (taking_part(seeds, registered) for registered in (first, second))
    made = parts(one, first) | parts2.parts(two, second)
    last = [seed for seed in seeds if seed.name in parts_methods.SEEDS]
    made |= parts_methods.parts(last, [seed for seed in two if seed.name in second["selection_seeds"]])
    made["cost_table"] = both_tables.cost_table([*one, *two, *last])
    said = [*first["hypotheses"], *second["hypotheses"]]
    made["said_table"] = both_tables.said_table(verdicts(one, first), verdicts(two, second), said)
    found = {}
    for page, text in PAGES.items():
        filled = (HERE / text).read_text(encoding="utf-8")
        for name, part in made.items():
            filled = filled.replace(f"{{{name}}}", part)
        found[page] = plain_names(filled)
    return found


def guard_part(seeds: list[Seed], first: dict[str, Any], second: dict[str, Any]) -> str:
    """What docs/harm.md says of both studies."""
    one, two = (taking_part(seeds, registered) for registered in (first, second))
    return plain_names(section(one, two, second))


def plain_names(text: str) -> str:
    """A seed of another architecture as a reader calls it."""
    return text.replace("seed gemma3 ", "Gemma 3 seed ").replace("| gemma3 ", "| Gemma 3, ")


def parts(seeds: list[Seed], registered: dict[str, Any]) -> dict[str, str]:
    """Everything that a text may name."""
    these, tuned = confirming(seeds, registered), registered["tuned"]
    choosing = [seed for seed in seeds if seed.number in registered["selection_seeds"]]
    rule, found = registered["recommended"], verdicts(seeds, registered)
    main = [rule, *registered["rivals"], *tables.CONTRASTS]
    return {
        "verdict_table": tables.verdict_table(found),
        "seen": registered["seen"],
        "gap_table": tables.gap_table(these, main, tuned),
        "short_table": tables.short_table(these, main, tuned),
        "dev_table": tables.gap_table(these, main, tuned, strong=False),
        "selection_table": tables.selection_table(choosing, tuned),
        "chosen_gap_table": tables.gap_table(choosing, list(RULES), tuned),
        "tuned_table": tables.tuned_table(seeds, tuned),
        **{f"harm_{name}_table": tables.harm_table(these, name) for name in HARM},
        **{f"choosing_harm_{name}_table": tables.harm_table(choosing, name) for name in HARM},
        "rounding_table": tables.rounding_table(seeds),
        "agents_table": tables.agents_table(seeds),
        "damage_table": tables.damage_table(seeds),
        "time_table": tables.time_table(seeds),
        "merge_time_table": tables.merge_time_table(seeds),
        "failure_table": tables.failure_table(seeds),
        "set_table": tables.set_table(),
        "five_others": five_told(these, registered),
        "recommended": rule,
        "tuned": " and ".join(tuned),
        "confirmation_seeds": " and ".join(map(str, registered["confirmation_seeds"])),
        "selection_seeds": " and ".join(map(str, registered["selection_seeds"])),
        **numbers(these, rule, tuned),
        **guard_numbers(seeds),
        **harm_numbers(these),
    }


def five_told(seeds: list[Seed], registered: dict[str, Any]) -> str:
    """What the rivals of whole matrices came to on the set of five, the mean of the seeds."""
    labels = [label for label in registered["rivals"] if RULES[label].gpu]
    gap = partial(Seed.gap, families=registered["tuned"], name="E5")
    gaps = {label: over(seeds, partial(gap, label=label)) for label in labels}
    return ", ".join(f"{label} {found.signed}" for label, found in gaps.items() if found) or "(not scored)"


def numbers(seeds: list[Seed], rule: str, tuned: list[str]) -> dict[str, str]:
    """What sentences say of the recommended rule on the seeds that confirm."""
    gaps = {name: over(seeds, partial(Seed.gap, label=rule, families=tuned, name=name)) for name in HEALTHY}
    there: dict[str, Value] = {name: gap for name, gap in gaps.items() if gap}
    if not there:
        return dict.fromkeys(("gap_mean", "gap_worst", "gap_worst_set", "gap_sets", "worst_single"), "(not scored)")
    worst = min(there, key=lambda name: there[name].mean)
    single = [(gap, name, seed) for seed in seeds for name in there if (gap := seed.gap(rule, tuned, name))]
    lowest, at, seed = min(single, key=lambda one: one[0].mean)
    return {
        "gap_mean": average(list(there.values())).signed,
        "gap_worst": there[worst].signed,
        "gap_worst_set": ABOUT[worst],
        "gap_sets": f"{len(there)} of {len(HEALTHY)}",
        "worst_single": f"{lowest.signed} ({ABOUT[at]}, seed {seed.number})",
    }


def harm_numbers(seeds: list[Seed]) -> dict[str, str]:
    """What sentences say of the domain that broke where no agent knows it: points above the base, sets H3 and H4."""
    rules = {"advised": ADVISED, "left_out": "wudi_auto, damaged left out", "plain": "wudi_auto"}
    found = {}
    for word, label in rules.items():
        cases = [
            paired(seed, key(label, name), "base", [seed.data["training"].get(DAMAGED, {}).get("broken") or "sort"])
            for seed in seeds
            for name in ("H3", "H4")
        ]
        there = [one for one in cases if one]
        found[f"lost_{word}"] = average(there).signed if there else "(not scored)"
    return found


if __name__ == "__main__":
    main()
