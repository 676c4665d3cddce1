"""What the texts of the pages may name of the second study."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tables
import tables2
from guard_tables import pairs
from hypotheses import ADVISED, accused_in, confirming, paired, verdicts
from plans import key
from results import Seed, average
from rules import KEEP, RULES, TUNED, WIDE
from sets import DAMAGED, HARM, HEALTHY, HEALTHY_MEASURED, domain_of
from study2 import BESIDE, HALF, KEPT
from tables2 import Ends, below, by_seed, called, each_damaged, ends, own_gaps, single_gaps
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = ("regmean, keep", "regmean", "fisher", "RAM, importance", "esm", "esm_vit", "mean", "RAM")
"""Rules that read what was measured on every agent, and two beside them that do not."""
ROUNDED = (KEPT, "wudi_auto", "RAM+ auto", "RAM+", "RAM", "TIES", "TA 1.0", "mean")
LACKS = "(not scored)"


def parts(seeds: Sequence[Seed], registered: dict[str, Any]) -> dict[str, str]:
    """By name, each of them beginning with two_."""
    these, rule, way = confirming(seeds, registered), registered["recommended"], registered["with_damage"]
    choosing = [seed for seed in seeds if seed.name in registered["selection_seeds"]]
    made = {
        "recommended": rule,
        "with_damage": way,
        "seen": registered["seen"],
        "selection": " and ".join(map(str, registered["selection_seeds"])),
        "confirming": " and ".join(map(called, these)),
        "verdict_table": tables.verdict_table(verdicts(seeds, registered)),
        "rounding_short": tables2.rounding_short(seeds, dict.fromkeys((rule, *ROUNDED))),
        "agents_table": tables.agents_table(seeds),
        "damage_table": tables.damage_table(seeds),
        "time_table": tables.time_table(seeds),
        "merge_time_table": tables.merge_time_table(seeds),
        "lacking_table": tables2.lacking_table(seeds),
        **confirmed(these, registered),
        **surveyed(choosing, registered),
        **numbers(these, registered),
        **costs(these, rule),
        **guarded(seeds, these, rule),
    }
    return {f"two_{name}": text for name, text in made.items()}


def confirmed(seeds: Sequence[Seed], registered: dict[str, Any]) -> dict[str, str]:
    """Tables of the seeds that confirm, each seed under its name."""
    tuned, rule, sets, way = (registered[name] for name in ("tuned", "recommended", "sets", "with_damage"))
    beside = list(dict.fromkeys([rule, *BESIDE, *registered["rivals"]]))
    healthy = [name for name in HEALTHY if name in sets]
    harm = list(dict.fromkeys([way, *beside, ADVISED, f"{rule}, advised"]))
    return {
        "core_table": tables2.core_table(seeds, beside, tuned),
        "short_tables": by_seed(seeds, partial(tables2.summary_table, labels=beside, families=tuned)),
        "gap_tables": by_seed(seeds, lambda seed: tables.gap_table([seed], beside, tuned, healthy)),
        "untrained_tables": by_seed(seeds, lambda seed: tables2.untrained_table([seed], beside)),
        "everywhere_tables": by_seed(seeds, partial(tables2.everywhere_table, mine=rule, labels=beside[1:])),
        "harm_tables": harm_tables(seeds, harm),
        "tuned_table": tables.tuned_table(seeds, tuned),
    }


def harm_tables(seeds: Sequence[Seed], labels: Sequence[str]) -> str:
    """Every set with the damaged agent, domain by domain."""
    return by_seed(seeds, lambda seed: "\n\n".join(tables.harm_table([seed], name, labels) for name in HARM))


def surveyed(seeds: Sequence[Seed], registered: dict[str, Any]) -> dict[str, str]:
    """Tables of the seed that surveys every method."""
    rule, tuned = registered["recommended"], registered["tuned"]
    told = [registered["with_damage"], *(f"{label}, advised" for label in ("wudi_auto", KEPT, rule))]
    told += [f"{label}{HALF}" for label in (KEPT, "wudi_auto, keep unowned")]
    harm = list(dict.fromkeys([rule, *WIDE, *told]))
    kept = dict.fromkeys((rule, *KEEP, "wudi_auto", "wudi exact", "regmean", "mean", "TA 1.0"))

    def each(make: Callable[[Seed], str]) -> str:
        return "\n\n".join(make(seed) for seed in seeds) or LACKS

    return {
        "survey_gap_table": tables.gap_table(seeds, list(RULES), tuned) if seeds else LACKS,
        "survey_data_table": tables.gap_table(seeds, [rule, *DATA], tuned, HEALTHY_MEASURED) if seeds else LACKS,
        "survey_keep_table": each(partial(tables2.summary_table, labels=kept, families=tuned)),
        "survey_untrained_table": tables2.untrained_table(seeds, RULES) if seeds else LACKS,
        "survey_harm_tables": harm_tables(seeds, harm),
        "survey_tuned_table": tables.tuned_table(seeds, list(TUNED)),
        "draws_table": each(partial(tables2.draws_table, labels=("wudi_auto", KEPT, "TA 1.0"))),
    }


def numbers(seeds: Sequence[Seed], registered: dict[str, Any]) -> dict[str, str]:
    """What sentences say of the seeds that confirm."""
    rule, tuned, way = registered["recommended"], registered["tuned"], registered["with_damage"]
    found = {
        "own_mean": by_name(seeds, lambda seed: mean_told(ends(own_gaps(seed, rule, tuned)))),
        "own_worst": by_name(seeds, lambda seed: worst_told(ends(own_gaps(seed, rule, tuned)))),
        "own_worst_plain": by_name(seeds, lambda seed: worst_told(ends(own_gaps(seed, "wudi_auto", tuned)))),
        "damaged_learned": by_name(seeds, damaged_told),
        "plain_said": plain_told(seeds, registered),
        "below": by_name(seeds, partial(below_told, label=way)),
        "below_plain": by_name(seeds, partial(below_told, label="wudi_auto")),
        "below_ram": by_name(seeds, partial(below_told, label="RAM")),
    }
    for word, label in {"": rule, "_plain": "wudi_auto"}.items():
        found[f"untrained_worst{word}"] = by_name(seeds, partial(single_told, label=label))
    return found


def plain_told(seeds: Sequence[Seed], registered: dict[str, Any]) -> str:
    """What comes of the first hypotheses, the gaps to the tuned baseline, where `wudi_auto` takes the place."""
    first = [one for one in registered["hypotheses"] if one["kind"] in {"worst", "average"}]
    found = verdicts(seeds, {**registered, "recommended": "wudi_auto", "hypotheses": first})
    return "; ".join(f"{one.name} **{one.word}**, {one.worst}" for one in found)


def damaged_told(seed: Seed) -> str:
    """What the damaged agent learned of its own domain."""
    gap = paired(seed, DAMAGED, "base", [domain_of(DAMAGED)])
    return gap.signed if gap else ""


def below_told(seed: Seed, label: str) -> str:
    """Domains of the sets with a damaged agent that are not above base and mean, and the furthest below the base."""
    found = ends(each_damaged(seed, label, "base"))
    return f"{below(seed, label)}, at worst {worst_told(found)}" if found else ""


def single_told(seed: Seed, label: str) -> str:
    """The worst single domain."""
    return worst_told(ends(single_gaps(seed, label)))


def by_name(seeds: Sequence[Seed], told: Callable[[Seed], str]) -> str:
    """One after another, with their names."""
    return " and ".join(f"{told(seed) or LACKS} ({called(seed)})" for seed in seeds)


def mean_told(found: Ends | None) -> str:
    """A mean in words."""
    return found.mean.signed if found else ""


def worst_told(found: Ends | None) -> str:
    """The worst in words."""
    return f"{found.worst.signed} in {found.where}" if found else ""


def costs(seeds: Sequence[Seed], rule: str) -> dict[str, str]:
    """What `keep` takes, and how dense the agents are."""
    grams = {called(seed): seed.data["training"].get("times", {}).get("grams", {}) for seed in seeds}
    prompts = {sum(one["prompts"] for one in seed.data["training"].get("harm", {}).get("skills", ())) for seed in seeds}
    return {
        "grams_seconds": " and ".join(f"{one['gpu_seconds']:.0f}" for one in grams.values() if one) or LACKS,
        "prompts": " or ".join(map(str, sorted(prompts))),
        "merge_seconds": by_name(seeds, partial(merge_seconds, label=rule)),
        "merge_seconds_plain": by_name(seeds, partial(merge_seconds, label="wudi_auto")),
        "densities": by_name(seeds, density_told),
    }


def density_told(seed: Seed) -> str:
    """From the sparsest of the main agents to the densest."""
    found = sorted(tables2.densities(seed))
    return f"{found[0]:.0%} to {found[-1]:.0%}" if found else ""


def merge_seconds(seed: Seed, label: str) -> str:
    """The median over the sets."""
    found = sorted(one["merge_seconds"] for one in seed.data["merges"].values() if one["label"] == label)
    return f"{found[len(found) // 2]:.0f} s" if found else ""


def guarded(seeds: Sequence[Seed], these: Sequence[Seed], rule: str) -> dict[str, str]:
    """What the guard found with more prompts, and what its advice gains."""
    known = [pair for pair in pairs(seeds) if pair.score is not None]
    lost, other = [pair for pair in known if pair.lost], [pair for pair in known if not pair.lost]
    accused = {called(seed): ", ".join(sorted(accused_in(seed) or ())) or "nobody" for seed in seeds}
    return {
        "accused": "; ".join(f"{names} ({seed})" for seed, names in accused.items()),
        "half": by_name(these, partial(gain_told, mine=f"{rule}{HALF}", other=rule)),
        "guard_losses": f"{sum(pair.row['harmed'] for pair in lost)} of {len(lost)}",
        "guard_wrong": f"{sum(pair.row['harmed'] for pair in other)} of {len(other)}",
        "advice_plain": by_name(these, partial(gain_told, mine=ADVISED, other="wudi_auto")),
        "advice": by_name(these, partial(gain_told, mine=f"{rule}, advised", other=rule)),
    }


def gain_told(seed: Seed, mine: str, other: str) -> str:
    """Over all domains of the sets with the damaged agent, their mean and the least."""
    gains = [paired(seed, key(mine, name), key(other, name), list(DOMAINS)) for name in HARM]
    there = sorted((gain for gain in gains if gain), key=lambda gain: gain.mean)
    return f"{average(there).signed}, at worst {there[0].signed}" if there else ""
