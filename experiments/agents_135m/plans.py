"""What is scored, in which order: a function of what was scored already, so that a run that was stopped goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rules import CORE, RULES, TUNED, UNOWNED, UNTRAINED, Family, Rule, advised, remedies
from sets import DAMAGED, HARM, HAVE_UNOWNED, KEEPING, MEASURED, MODELS, SETS, domains_scored, untrained
from tasks import levels_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEV, TEST, BOTH = ("dev",), ("test",), ("dev", "test")
SECOND = ("wudi_auto per matrix", "RAM+ auto 1.1", "resmerge", "iso_c", "tsv_m", "wudi exact")
MAIN_SETS = ("E5", "E3", "H3", "D2", "U3", "S3", "E7", "F3")
SOME_SETS = ("E5", "E3", "U3")
FLOATS = ("wudi_auto", "mean", "RAM+", "RAM+ auto", "TA 1.0")
COUNTS = {"dev": 256, "test": 512}
"""Prompts of a sub-task."""
TINY_COUNTS = {"dev": 4, "test": 6}
NEAREST = ("wudi_auto", "RAM+ auto", "TA 1.0", "mean", "RAM+", "RAM", "TIES", "resmerge")


@dataclass(frozen=True)
class Merge:
    """A set merged by a rule, and the splits that it is scored on."""

    set: str
    rule: Rule
    splits: tuple[str, ...]
    tier: int  # the lower the sooner
    family: str | None = None
    value: float | None = None
    wide: bool = False  # scored on all domains, whatever its set

    @property
    def domains(self) -> list[str]:
        """Those that it is scored on."""
        return domains_scored(self.set, wide=self.wide)

    def lacks(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        """Splits that an entry of the results has no scores of, or not of all its domains."""
        return lacking_of(entry, self.splits, self.domains)

    @property
    def key(self) -> str:
        """Its name in the results."""
        return key(self.rule.label, self.set, self.rule.output, self.rule.seed)

    @property
    def agents(self) -> list[str]:
        """Those of its set that take part."""
        return [name for name in SETS[self.set] if name not in self.rule.left_out]

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the order."""
        return self.tier, list(SETS).index(self.set)


def lacking_of(entry: Mapping[str, Any], splits: Sequence[str], domains: Sequence[str]) -> tuple[str, ...]:
    """Splits that an entry of the results has no scores of, or not of all these domains."""
    wanted = {task for domain in domains for task in levels_of(domain)}
    return tuple(split for split in splits if not wanted.issubset(entry.get(split, ())))


def key(label: str, name: str, output: str = "stochastic", seed: int = 0) -> str:
    """A merge's name in the results: what, of which set, stored how."""
    return " | ".join([label, name, output, *([f"seed {seed}"] if seed else [])])


@dataclass(frozen=True)
class Plan:
    """A list of merges that holds from the start, and families that are tuned."""

    fixed: Sequence[Merge]
    families: Sequence[tuple[int, str, Sequence[str]]]
    """Tier, family, sets."""
    models: Sequence[str]
    """Base and agents."""
    model_splits: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=lambda: COUNTS)
    """Prompts of a sub-task by split."""
    wide_agents: bool = False
    """Whether the seven main agents are scored on all domains."""

    def wanted(self, merges: Mapping[str, Mapping[str, Any]], means: Mapping[str, float]) -> Iterator[Merge]:
        """Everything that can be merged now and lacks a score.

        Args:
            merges: what was found, by key.
            means: mean on dev by key, of those that have it.
        """
        every = [*self.fixed, *self._tuned(means)]
        once: dict[str, Merge] = {}
        for merge in sorted(every, key=lambda merge: merge.rank):
            lacking = merge.lacks(merges.get(merge.key, {}))
            before = once.get(merge.key)
            if before and set(lacking) <= set(before.splits) and merge.wide <= before.wide:
                continue
            if lacking:
                splits = tuple(dict.fromkeys([*(before.splits if before else ()), *lacking]))
                first = before or merge
                family, value = merge.family or first.family, merge.value if merge.family else first.value
                wide = first.wide or merge.wide
                once[merge.key] = replace(first, splits=splits, family=family, value=value, wide=wide)
        yield from once.values()

    def _tuned(self, means: Mapping[str, float]) -> Iterator[Merge]:
        """The next points of every grid; once a grid is done, its best on test."""
        by_set = {name: {one: mean for one, mean in means.items() if f" | {name} | " in one} for name in SETS}
        for tier, name, sets in self.families:
            family = TUNED[name]
            for one in sets:
                scored = tuned_means(family, one, by_set[one])
                values = family.next_values(scored)
                for value in values:
                    yield Merge(one, family.rule(value), DEV, tier, name, value)
                if not values:
                    best = max(scored, key=lambda value: scored[value])
                    yield Merge(one, family.rule(best), TEST, tier, name, best)


def tuned_means(family: Family, name: str, means: Mapping[str, float]) -> dict[float, float]:
    """Means on dev by the family's value, in one set, in the order of the values."""
    found, prefix, suffix = {}, f"{family.name} ", f" | {name} | stochastic"
    for one, mean in means.items():
        middle = one.removeprefix(prefix).removesuffix(suffix)
        if one == f"{prefix}{middle}{suffix}" and is_number(middle):
            found[float(middle)] = mean
    return dict(sorted(found.items()))


def is_number(text: str) -> bool:
    """Whether this is a value of a grid."""
    return text.replace(".", "", 1).isdecimal()


def select_plan(advice: Mapping[str, Any]) -> Plan:
    """The seed on which rules are chosen: every method on dev, the main ones on test too."""
    rest = [label for label, rule in RULES.items() if label not in {*CORE, *SECOND} and not rule.measured]
    fixed = [
        *many(CORE, SETS, BOTH, 1),
        *many(SECOND, SETS, BOTH, 3),
        *harm_merges(BOTH, 2, advice),
        *many(rest, MAIN_SETS[:3], DEV, 4),
        *many(NEAREST, MAIN_SETS, BOTH, 5, "nearest"),
        *many(rest, MAIN_SETS[3:], DEV, 6),
        *many(FLOATS, SOME_SETS, BOTH, 7, "float32"),
        *(Merge(s, again(RULES[label]), BOTH, 7) for label in ("wudi_auto", "TA 1.0") for s in SOME_SETS),
    ]
    others = [(5, name, SOME_SETS) for name, family in TUNED.items() if name not in {"TA", "TIES"} and not family.gpu]
    return Plan(fixed, [(1, "TA", list(SETS)), (1, "TIES", list(SETS)), *others], MODELS, BOTH, wide_agents=True)


def confirm_plan(advice: Mapping[str, Any], registered: Mapping[str, Any]) -> Plan:
    """A seed that confirms: what was registered against baselines that are tuned on its dev.

    Baselines are tuned on the sets without a damaged agent; what is not registered comes last.
    """
    healthy = [name for name in registered["sets"] if name not in HARM]
    harm = [name for name in registered["sets"] if name in HARM]
    first = [registered["recommended"], "mean"]
    family = [label for label in ("RAM", "RAM+", "RAM+ auto") if label not in first]
    rivals = [label for label in registered["rivals"] if label not in {*first, *family}]
    told = harm_merges(TEST, 2, advice, harm)
    told = [merge for merge in told if merge.rule.label in {"wudi_auto, advised", *registered["remedies"]}]
    fixed = [
        *many(first, healthy, TEST, 1),
        *many([*first, "RAM", "RAM+", "TIES", "TA 1.0"], harm, TEST, 2),
        *told,
        *many(family, healthy, TEST, 3),
        *many(rivals, healthy, TEST, 4),
        *many(NEAREST, SOME_SETS, TEST, 5, "nearest"),
        *many(FLOATS, SOME_SETS, TEST, 6, "float32"),
    ]
    return Plan(fixed, [(1, name, healthy) for name in registered["tuned"]], MODELS, TEST)


def tiny_plan(advice: Mapping[str, Any]) -> Plan:
    """Two sets, a rule of each kind, one family."""
    labels = ("wudi_auto", "mean", "RAM+ auto", "resmerge")
    fixed = [*many(labels, ("E2", "H3"), BOTH, 1), *harm_merges(TEST, 2, advice, ("H3",))[:2]]
    models = ("base", "tool", "memory", DAMAGED)
    return Plan(fixed, [(1, "TA", ["E2"])], models, BOTH, TINY_COUNTS, wide_agents=True)


def many(
    labels: Sequence[str],
    sets: Sequence[str] | Mapping[str, Any],
    splits: tuple[str, ...],
    tier: int,
    output: str = "",
    *,
    wide: bool = False,
) -> list[Merge]:
    """Each of these rules on each of these sets, where what it reads was measured."""
    return [
        Merge(name, RULES[label].stored(output) if output else RULES[label], splits, tier, wide=wide)
        for name in sets
        for label in labels
        if possible(RULES[label], name)
    ]


def possible(rule: Rule, name: str) -> bool:
    """Whether everything that a rule reads was measured for a set; of one with an agent for everything nothing is."""
    kept = {UNOWNED: HAVE_UNOWNED, UNTRAINED: (*KEEPING, *(one for one in SETS if not untrained(one)))}
    return (not rule.reads or name in MEASURED) and name in kept.get(rule.keep, SETS)


def harm_merges(
    splits: tuple[str, ...], tier: int, advice: Mapping[str, Any], sets: Sequence[str] = HARM
) -> list[Merge]:
    """The guard's advice on every set with the damaged agent, and all that could be advised."""
    told = [Merge(name, advised(advice[name]), splits, tier) for name in sets if name in advice]
    return told + [Merge(name, rule, splits, tier) for name in sets for rule in remedies(DAMAGED)]


def again(rule: Rule) -> Rule:
    """Another draw of the rounding."""
    return replace(rule, seed=1)
