"""What the texts of the pages may name of the seed that scores every method: it was no part of either study."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tables
import tables2
from hypotheses import accused_in
from parts2 import LACKS
from plans import key
from rules import KEEP, RULES, TUNED
from sets import ABOUT, HARM, HEALTHY, HEALTHY_MEASURED, domains_of, untrained
from study2 import COMBINED, EVERYWHERE, HALF, READING
from tables2 import Ends, below, ends, own_gaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results import Seed

SEEDS = (6,)
"""Scored after both studies, by the plan `methods`. They chose nothing."""
RULE = "wudi_auto"
SHOWN = (*COMBINED, "RAM, importance")
"""What stands beside the methods in the table of all of them, where it was scored."""
ELEMENTWISE = tuple(name for name, family in TUNED.items() if not family.gpu)


def parts(seeds: Sequence[Seed], surveys: Sequence[Seed]) -> dict[str, str]:
    """By name, each of them beginning with all_.

    Args:
        seeds: that scored every method; the first one counts.
        surveys: of the second study: what a method does where no agent was trained is known of those.
    """
    seed, wide = seeds[0], surveys[0] if surveys else seeds[0]
    kept = [label for label in KEEP if "untrained kept" in label]
    ways = [f"{label}{what}" for label in (RULE, *kept) for what in ("", ", advised", HALF)]
    tuned = [name for name in TUNED if any(seed.chosen(name, one) for one in HEALTHY)]
    made = {
        "seed": tables2.called(seed),
        "unscored": ", ".join(f"`{name}`" for name in tables2.unscored(seed, EVERYWHERE)) or "none",
        "methods_table": tables2.methods_table(seed, SHOWN, RULE, EVERYWHERE, wide),
        "gap_table": tables.gap_table([seed], list(RULES), EVERYWHERE),
        "data_table": tables.gap_table([seed], [RULE, *READING, "esm", "esm_vit"], EVERYWHERE, HEALTHY_MEASURED),
        "family_table": family_table(seed, tuned),
        "tuned_table": tables.tuned_table([seed], tuned),
        "rounding_table": tables.rounding_table([seed]),
        "draws_table": tables2.draws_table(seed, (RULE, "TA 1.0")),
        "keep_table": tables2.summary_table(seed, (RULE, *kept, "mean"), EVERYWHERE, RULE),
        "ways_table": ways_table(seed, ways),
        "half_ways": "\n".join(half_told(seed, label) for label in (RULE, *kept)),
        "harm_tables": "\n\n".join(tables.harm_table([seed], name, ["mean", *different(ways, name)]) for name in HARM),
        "damage_table": tables.damage_table([seed]),
        "accused": ", ".join(sorted(accused_in(seed) or ())) or "nobody",
        "agents_table": tables.agents_table([seed]),
        "time_table": tables.time_table([seed]),
        "merge_time_table": tables.merge_time_table([seed]),
        "lacking_table": tables2.lacking_table([seed]),
        **numbers(seed, [name for name in tuned if name in ELEMENTWISE]),
    }
    return {f"all_{name}": text for name, text in made.items()}


def different(labels: Sequence[str], name: str) -> list[str]:
    """Those that are not another one under a second name: a set with an agent for everything keeps nothing."""
    return [label for label in labels if untrained(name) or "kept" not in label]


def numbers(seed: Seed, families: Sequence[str]) -> dict[str, str]:
    """What sentences say of the recommended rule: against the usual baseline, and against the best that was tuned."""
    usual, every = ends(own_gaps(seed, RULE, EVERYWHERE)), ends(own_gaps(seed, RULE, families))
    return {
        "families": f"{', '.join(families[:-1])} and {families[-1]}" if families else LACKS,
        "usual": told(usual),
        "every": told(every),
        "scored": f"{len(seed.data['merges']) + len(seed.data['models']):,}",
    }


def told(found: Ends | None) -> str:
    """Mean, the worst by name, and how many sets."""
    if found is None:
        return LACKS
    return f"{found.mean.signed} on average, {found.worst.signed} at worst ({found.where}; {found.count} sets)"


def family_table(seed: Seed, families: Sequence[str]) -> str:
    """Every tuned family on test, each set at what its own dev chose, and the recommended rule, which is not tuned."""
    rows = []
    for family in families:
        found = {name: seed.chosen(family, name) for name in HEALTHY}
        rows.append([f"{family}, tuned", *(score(seed, one, name) for name, one in found.items())])
    mine = {name: key(RULE, name) for name in HEALTHY}
    there = {name: one if seed.has(one) else None for name, one in mine.items()}
    rows.append([f"{RULE}, not tuned", *(score(seed, one, name) for name, one in there.items())])
    return tables.markdown(["score", *(ABOUT[name] for name in HEALTHY)], rows)


def score(seed: Seed, merge: str | None, name: str) -> str:
    """On the domains of a set's agents."""
    return str(seed.mean(merge, domains_of(name))) if merge else ""


def half_told(seed: Seed, label: str) -> str:
    """A line of a list: what is below base or mean with half the weight for the damaged agent, and the worst."""
    base, mean = (ends(tables2.each_damaged(seed, f"{label}{HALF}", other)) for other in ("base", "mean"))
    if base is None or mean is None:
        return f"- `{label}`: {LACKS}"
    ends_told = [f"{one.worst.signed} from the {name} ({one.where})" for name, one in (("base", base), ("mean", mean))]
    return f"- `{label}`: {below(seed, f'{label}{HALF}')} domains not above both, at worst {' and '.join(ends_told)}"


def ways_table(seed: Seed, labels: Sequence[str]) -> str:
    """Ways with the damaged agent: all domains against the base, the worst one, and how many are not above both."""
    rows = []
    for label in dict.fromkeys(labels):
        all_of_them = ends(tables2.damaged_gaps(seed, label))
        if all_of_them is None:
            continue
        base, mean = (ends(tables2.each_damaged(seed, label, other)) for other in ("base", "mean"))
        cells = [one.worst.signed + f" ({one.where})" if one else "" for one in (base, mean)]
        rows.append([label, all_of_them.mean.signed, *cells, below(seed, label)])
    head = ["rule", "all domains, above the base", "worst, above the base", "worst, above the mean", "not above both"]
    return tables.markdown(head, rows)
