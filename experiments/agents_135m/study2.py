"""Plans of the second study: a seed that surveys every method with and without `keep`, and seeds that confirm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plans import (
    COUNTS,
    FLOATS,
    NEAREST,
    SOME_SETS,
    TEST,
    TINY_COUNTS,
    Merge,
    Plan,
    again,
    harm_merges,
    many,
)
from rules import CORE, DEFAULTS, KEEP, RULES, TUNED, WIDE, Rule, advised, remedies
from sets import DAMAGED, HARM, HEALTHY, MODELS, SETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SURVEY_COUNTS = {"dev": 128, "test": 256}
KEPT, HALF = "wudi_auto, keep", ", damaged x 0.5"
FIRST = ("H3", "H4", "H7", "E3", "D2", "X3", "F3", "E5", "E2")
"""Sets that must not be lacking, in their order; the seeds that confirm have these alone."""
COSTLY = ("disentangle TIES", "DELLA", "DELLA linear", "Breadcrumbs", "Breadcrumbs TIES")
"""Five to fifteen seconds of a processor with three agents, where most take 1 to 3."""
SLOW = ("wudi adam", "tsv_m", "iso_c", "iso_cts", "svc TA")
SLOWEST = ("resmerge", "esm", "esm_vit", "calibrate resmerge")
"""From eight seconds of a GPU on, and half a minute and more: what else there is to do comes before them."""
COMBINED = (
    "wudi_auto, RAM auto elsewhere",
    "wudi_auto per matrix",
    "calibrate resmerge",
    "calibrate iso_c",
    "calibrate tsv_m",
)
"""Of two methods, or with another factor."""
READING = ("regmean", "fisher", "RAM, importance")
"""What was measured on every agent's own answers."""
SPECTRAL, SPECTRAL_SETS = ("TSV-M", "Iso-C"), ("E3", "D2", "F3")
"""Families of whole matrices, eight seconds of a GPU each, and the sets that they are tuned on."""
EVERYWHERE = ("TA", "TIES")
"""Families that are tuned on the sets with a damaged agent, too."""
BESIDE = ("wudi_auto", "mean", "TA 1.0", "TIES", "RAM", "RAM+", "RAM+ auto")
"""What a seed that confirms shows beside the recommended rule."""


def survey_plan(advice: Mapping[str, Any]) -> Plan:
    """The seed on which the second study chooses: test prompts of all domains first, dev of grids last."""
    apart = {*WIDE, *COSTLY, *SLOW, *SLOWEST}
    quick = [label for label in (*DEFAULTS.values(), "RAM, importance") if label not in apart]
    rest = [name for name in SETS if name not in FIRST]
    stored = [label for label in (KEPT, *NEAREST) if label not in SLOWEST]
    fixed = [
        *(merge for place, name in enumerate(FIRST) for merge in main_merges(name, 10 + place, advice)),
        *many(WIDE, rest, TEST, 30, wide=True),
        *many(quick, SETS, TEST, 31),
        *many(stored, HEALTHY, TEST, 33, "nearest"),
        *many(COSTLY, SETS, TEST, 34),
        *many(SLOW, SETS, TEST, 34),
        *many((KEPT, *FLOATS), SOME_SETS, TEST, 35, "float32"),
        *(Merge(name, again(RULES[label]), TEST, 35) for label in ("wudi_auto", KEPT, "TA 1.0") for name in SOME_SETS),
        *many(SLOWEST, SETS, TEST, 37),
    ]
    cheap = [name for name in TUNED if name not in {*EVERYWHERE, *COSTLY, *SPECTRAL}]
    families = [
        *((32, name, list(SETS)) for name in EVERYWHERE),
        *((33, name, list(HEALTHY)) for name in cheap),
        *((36, name, list(HEALTHY)) for name in TUNED if name in COSTLY),
    ]
    return Plan(fixed, families, MODELS, TEST, SURVEY_COUNTS, wide_agents=True)


def methods_plan(advice: Mapping[str, Any]) -> Plan:
    """A seed that goes on where the survey ended: every method on every set, those last that it reached.

    On the domains of the sets' agents, but for ways to keep, which are scored on all.
    """
    others = sorted((name for name in TUNED if name not in EVERYWHERE), key=COSTLY.__contains__)
    late = {*CORE, *SLOW, *SLOWEST, *COSTLY, *COMBINED, *READING}
    kept = [label for label in KEEP if "untrained kept" in label]
    fixed = [
        *many(CORE, HEALTHY, TEST, 1),
        *many((*SLOW, *COSTLY), HEALTHY, TEST, 3),
        *many((*kept, "wudi_auto", "mean"), HARM, TEST, 2, wide=True),
        *advised_merges(advice, HARM, ["wudi_auto", *kept], 2),
        *(Merge(name, halved(label), TEST, 2, wide=True) for name in HARM for label in ("wudi_auto", *kept)),
        *many([label for label in COMBINED if label not in SLOWEST], HEALTHY, TEST, 4),
        *many((*READING, "esm", "esm_vit"), HEALTHY, TEST, 4),
        *many(kept, FIRST, TEST, 6, wide=True),
        *many(SLOWEST, HEALTHY, TEST, 8),
        *many([label for label in NEAREST if label not in SLOWEST], HEALTHY, TEST, 7, "nearest"),
        *many(FLOATS, SOME_SETS, TEST, 8, "float32"),
        *(Merge(name, again(RULES[label]), TEST, 8) for label in ("wudi_auto", "TA 1.0") for name in SOME_SETS),
        *many([label for label in DEFAULTS.values() if label not in late], HEALTHY, TEST, 9),
    ]
    families = [
        *((1, name, list(HEALTHY)) for name in EVERYWHERE),
        *((5, name, list(HEALTHY)) for name in others if name not in SPECTRAL),
        *((6, name, list(SPECTRAL_SETS)) for name in SPECTRAL),
    ]
    return Plan(fixed, families, MODELS, TEST, SURVEY_COUNTS)


def main_merges(name: str, tier: int, advice: Mapping[str, Any]) -> list[Merge]:
    """What the survey is about, on one set."""
    found = many((*KEEP, *CORE), [name], TEST, tier, wide=True)
    told = advised_merges(advice, [name], ["wudi_auto", KEPT], tier)
    tried = remedies(DAMAGED) if name in HARM else []
    return [*found, *told, *(Merge(name, rule, TEST, tier, wide=True) for rule in tried)]


def confirm2_plan(advice: Mapping[str, Any], registered: Mapping[str, Any]) -> Plan:
    """A seed that confirms: what was registered, beside what it is held against; the rest comes last."""
    sets: Sequence[str] = registered["sets"]
    healthy, harm = [name for name in sets if name not in HARM], [name for name in sets if name in HARM]
    rule = registered["recommended"]
    ways = list(
        dict.fromkeys([registered["with_damage"].removesuffix(", advised").removesuffix(HALF), rule, "wudi_auto"])
    )
    first = list(dict.fromkeys([rule, "wudi_auto", "mean"]))
    beside = [label for label in (*BESIDE, *registered["rivals"]) if label not in first]
    fixed = [
        *many(list(dict.fromkeys([*ways, "mean"])), harm, TEST, 1, wide=True),
        *advised_merges(advice, harm, ways, 1),
        *(Merge(name, halved(label), TEST, 1, wide=True) for name in harm for label in ways),
        *many(first, healthy, TEST, 2, wide=True),
        *many(beside, sets, TEST, 3, wide=True),
        *(merge for merge in harm_merges(TEST, 4, {}, harm) if merge.rule.label in registered["remedies"]),
        *many(list(dict.fromkeys([rule, "RAM+ auto", "RAM+", "TA 1.0"])), sets, TEST, 5, "nearest"),
    ]
    families = [(2, name, healthy) for name in registered["tuned"]] + [(6, name, harm) for name in registered["tuned"]]
    models = [name for name in MODELS if name == "base" or any(name in SETS[one] for one in sets)]
    return Plan(fixed, families, models, TEST, COUNTS)


def halved(label: str) -> Rule:
    """A rule with half the weight for the damaged agent: of the guard's advice it needs the name alone."""
    return replace(RULES[label], label=label + HALF, weights={DAMAGED: 0.5})


def advised_merges(advice: Mapping[str, Any], sets: Sequence[str], labels: Sequence[str], tier: int) -> list[Merge]:
    """These rules with what the guard says of each set."""
    there = [name for name in sets if name in advice]
    rules = [(name, advised(advice[name], label)) for name in there for label in dict.fromkeys(labels)]
    return [Merge(name, rule, TEST, tier, wide=True) for name, rule in rules]


def tiny_survey(advice: Mapping[str, Any]) -> Plan:
    """A rule of each kind that reads what was measured, on two sets."""
    labels = (KEPT, "wudi_auto, keep unowned", "regmean, keep", "fisher", "esm")
    fixed = [*many(labels, ("E2", "H3"), TEST, 1, wide=True), *advised_merges(advice, ("H3",), [KEPT], 2)]
    return Plan(fixed, [], ("base", "tool"), TEST, TINY_COUNTS, wide_agents=True)


def tiny_confirm2(advice: Mapping[str, Any], registered: Mapping[str, Any]) -> Plan:
    """The same as `confirm2_plan`, on two of its sets, with what is shown beside left out."""
    plan = confirm2_plan(advice, {**registered, "sets": ["H3", "E2"], "rivals": [], "tuned": ["TA"]})
    fixed = [merge for merge in plan.fixed if merge.tier < 3]
    return Plan(fixed, plan.families[:1], plan.models, plan.model_splits, TINY_COUNTS)
