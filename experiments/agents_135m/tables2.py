"""The tables of the second study as Markdown: what is kept where no agent was trained, and every method once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypotheses import paired
from plans import SOME_SETS, again, key
from results import Seed, Value, average, over
from rules import DEFAULTS, RULES, TUNED
from sets import ABOUT, HARM, HEALTHY, SETS, domains_of, untrained
from tables import markdown, shown
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FALLEN = -3.0
"""Points of a single domain; its error is 1 to 2."""
WITH_DAMAGED = {ABOUT[name] for name in HARM}


@dataclass(frozen=True)
class Ends:
    """Mean and worst of some cases."""

    mean: Value
    worst: Value
    where: str
    count: int

    @property
    def cells(self) -> list[str]:
        """Mean, and the worst by name."""
        return [self.mean.signed, f"{self.worst.signed} ({self.where})"]


def ends(cases: dict[str, Value | None]) -> Ends | None:
    """Of those that were scored; none without any."""
    there = {name: value for name, value in cases.items() if value is not None}
    if not there:
        return None
    low = min(there, key=lambda name: there[name].mean)
    return Ends(average(list(there.values())), there[low], low, len(there))


def own_gaps(seed: Seed, label: str, families: Sequence[str]) -> dict[str, Value | None]:
    """A rule against the better of tuned TA and TIES in every healthy set, by the set's name in words."""
    return {ABOUT[name]: seed.gap(label, families, name) for name in HEALTHY}


def untrained_gaps(seed: Seed, label: str) -> dict[str, Value | None]:
    """A rule against the base on what no agent of a set was trained on, each set's mean."""
    return {ABOUT[name]: kept(seed, label, name) for name in SETS if untrained(name)}


def single_gaps(seed: Seed, label: str) -> dict[str, Value | None]:
    """The same of every single domain."""
    return {
        f"{ABOUT[name]}, {domain}": paired(seed, key(label, name), "base", [domain])
        for name in SETS
        for domain in untrained(name)
    }


def damaged_gaps(seed: Seed, label: str) -> dict[str, Value | None]:
    """A rule against the base over all domains, in the sets with the damaged agent."""
    return {ABOUT[name]: paired(seed, key(label, name), "base", list(DOMAINS)) for name in HARM}


def each_damaged(seed: Seed, label: str, other: str) -> dict[str, Value | None]:
    """A rule against the base or another rule on every single domain of the sets with the damaged agent."""
    return {
        f"{ABOUT[name]}, {domain}": paired(
            seed, key(label, name), "base" if other == "base" else key(other, name), [domain]
        )
        for name in HARM
        for domain in DOMAINS
    }


def below(seed: Seed, label: str) -> str:
    """Domains of the sets with a damaged agent that are not above base and mean, of those that were scored."""
    base, mean = (each_damaged(seed, label, other) for other in ("base", "mean"))
    both = [(one.mean, two.mean) for one, two in zip(base.values(), mean.values(), strict=True) if one and two]
    return f"{sum(min(pair) <= 0 for pair in both)} of {len(both)}" if both else ""


def summary_table(seed: Seed, labels: Iterable[str], families: Sequence[str], beside: str = "") -> str:
    """A row for each rule, in the order given: own domains, untrained ones, the sets with a damaged agent.

    Args:
        seed: that scored them.
        labels: the rules.
        families: of the tuned baseline.
        beside: a rule that each is held against on own domains, on the sets that both have; "" for none.
    """
    once = list(dict.fromkeys(labels))
    owns = {label: ends(own_gaps(seed, label, families)) for label in once}
    lefts = {label: ends(untrained_gaps(seed, label)) for label in once}
    rows = []
    for label in once:
        own, left = owns[label], lefts[label]
        single, damaged = ends(single_gaps(seed, label)), ends(damaged_gaps(seed, label))
        if own or left:
            less = ends(against(seed, label, beside)) if beside and label != beside else None
            cells = [counted(own, list(owns.values())), own.cells[1] if own else ""]
            cells += [less.mean.signed if less else ""] if beside else []
            cells += [counted(left, list(lefts.values())), single.cells[1] if single else "", fallen(seed, label)]
            cells += [damaged.mean.signed if damaged else "", below(seed, label)]
            rows.append([label, *cells])
    less_head = [f"less {beside}"] if beside else []
    head = ["rule", "own: mean", "worst set", *less_head, "untrained: mean", "worst domain", "fallen"]
    return markdown([*head, "damaged: all domains", "below"], rows)


def core_table(seeds: Sequence[Seed], labels: Sequence[str], families: Sequence[str]) -> str:
    """The same in short, some columns a seed: own and untrained domains, the worst of the latter, and how many fell."""
    rows = [[f"`{label}`" if label.startswith("wudi") else label] for label in labels]
    for seed in seeds:
        own = [ends(own_gaps(seed, label, families)) for label in labels]
        left = [ends(untrained_gaps(seed, label)) for label in labels]
        for place, label in enumerate(labels):
            single = ends(single_gaps(seed, label))
            rows[place] += [counted(own[place], own), counted(left[place], left)]
            rows[place] += [single.worst.signed if single else "", fallen(seed, label)]
    head = [cell for seed in seeds for cell in (f"{called(seed)}: own", "untrained", "worst domain", "fallen")]
    return markdown(["rule", *head], rows)


def counted(one: Ends | None, every: Sequence[Ends | None]) -> str:
    """A mean; with its sets where they are fewer than another's."""
    if one is None:
        return ""
    few = one.count < max(other.count for other in every if other)
    return f"{one.mean.signed}{f' ({one.count} sets)' * few}"


def fallen(seed: Seed, label: str) -> str:
    """How many untrained domains are clearly below the base: of all sets, of those that were scored."""
    there = [gap for gap in single_gaps(seed, label).values() if gap]
    return f"{sum(gap.mean <= FALLEN for gap in there)} of {len(there)}" if there else ""


def untrained_table(seeds: Sequence[Seed], labels: Iterable[str]) -> str:
    """Points from the base where no agent was trained, set by set, mean of the seeds; those first that lose least."""
    names = [name for name in SETS if untrained(name)]
    rows = []
    for label in dict.fromkeys(labels):
        gaps = [over(seeds, partial(kept, label=label, name=name)) for name in names]
        if there := [gap for gap in gaps if gap]:
            mean, cells = average(there), [shown(gap, signed=True) for gap in gaps]
            rows.append((gaps.count(None), -mean.mean, [label, *cells, mean.signed]))
    used = [place for place, _ in enumerate(names) if any(row[2][place + 1] for row in rows)]
    picked = [[cells[0], *(cells[place + 1] for place in used), cells[-1]] for *_, cells in sorted(rows)]
    return markdown(["rule", *(ABOUT[names[place]] for place in used), "mean"], picked)


def kept(seed: Seed, label: str, name: str) -> Value | None:
    """A rule against the base on what no agent of a set was trained on."""
    return paired(seed, key(label, name), "base", untrained(name))


def everywhere_table(seed: Seed, mine: str, labels: Iterable[str]) -> str:
    """The recommended rule less others over all seven domains of every set."""
    rows = []
    for label in labels:
        gaps = {name: paired(seed, key(mine, name), key(label, name), list(DOMAINS)) for name in SETS}
        if any(gaps.values()):
            rows.append((label, gaps))
    used = [name for name in SETS if any(gaps[name] for _, gaps in rows)]
    head = [f"{mine} above", *(ABOUT[name] for name in used)]
    return markdown(head, [[label, *(shown(gaps[name], signed=True) for name in used)] for label, gaps in rows])


def methods_table(seed: Seed, more: Sequence[str], beside: str, families: Sequence[str], wide: Seed) -> str:
    """Every method once, on the domains of the agents, with what it does where no agent was trained.

    Best to worst against one of them, on the sets that both have, as not every method was scored on the same.

    Args:
        seed: that scored them.
        more: rules that are shown, too.
        beside: the rule that each is held against.
        families: of the tuned baseline.
        wide: the seed that scored them where no agent was trained: each in the sets with a damaged agent, the main
            ones in the others, too.
    """
    labels = {f"`{name}`": label for name, label in DEFAULTS.items()} | {label: label for label in more}
    by_method = {family.make(1.0)["name"]: name for name, family in TUNED.items()}
    rows = []
    for name, label in labels.items():
        own, left = ends(own_gaps(seed, label, families)), untrained_gaps(wide, label)
        family = by_method.get(name.strip("`"))
        tuned = ends(tuned_gaps(seed, family, families)) if family else None
        if own:
            mine = ends(against(seed, label, beside))
            told = f" ({own.count} of {len(HEALTHY)} sets)" if own.count < len(HEALTHY) else ""
            few = f" ({tuned.count} sets)" if tuned and tuned.count < own.count else ""
            cells = [f"{name}{told}", own.mean.signed, own.worst.signed, tuned.mean.signed + few if tuned else ""]
            cells += [mine.mean.signed if mine and label != beside else ""]
            for harm in (False, True):
                part = ends({name: gap for name, gap in left.items() if (name in WITH_DAMAGED) == harm})
                cells.append(part.mean.signed if part else "")
            rows.append((-mine.mean.mean if mine else 0.0, cells))
    head = ["method", "default: mean", "worst set", "tuned: mean", f"less {beside}"]
    return markdown([*head, "untrained: healthy sets", "with a damaged agent"], [cells for _, cells in sorted(rows)])


def unscored(seed: Seed, families: Sequence[str]) -> list[str]:
    """Methods that the survey has on no healthy set."""
    return [name for name, label in DEFAULTS.items() if not ends(own_gaps(seed, label, families))]


def tuned_gaps(seed: Seed, family: str, families: Sequence[str]) -> dict[str, Value | None]:
    """A family at the setting that dev chose, against the tuned baseline, in every healthy set."""
    found: dict[str, Value | None] = {}
    for name in HEALTHY:
        mine, other = seed.chosen(family, name), seed.strongest(families, name)
        found[ABOUT[name]] = seed.mean(mine, domains_of(name), against=other) if mine and other else None
    return found


def against(seed: Seed, label: str, other: str) -> dict[str, Value | None]:
    """A rule less another on the domains of the agents, in every healthy set."""
    return {ABOUT[name]: paired(seed, key(label, name), key(other, name), domains_of(name)) for name in HEALTHY}


def rounding_short(seeds: Sequence[Seed], labels: Iterable[str]) -> str:
    """Rounded to the nearest and kept in float32 against stochastic rounding, by seed."""
    rows = []
    for label in labels:
        cells = [shown(stored(seed, label, output), signed=True) for seed in seeds for output in ("nearest", "float32")]
        if any(cells):
            rows.append([label, *cells])
    used = [place for place in range(2 * len(seeds)) if any(row[place + 1] for row in rows)]
    head = [f"{output}, seed {seed.name}" for seed in seeds for output in ("nearest", "float32")]
    return markdown(["rule", *(head[place] for place in used)], [[r[0], *(r[p + 1] for p in used)] for r in rows])


def stored(seed: Seed, label: str, output: str) -> Value | None:
    """What an output gains on stochastic rounding: the mean over the sets that have both, own domains."""
    gaps = [paired(seed, key(label, name, output), key(label, name), domains_of(name)) for name in SETS]
    there = [gap for gap in gaps if gap]
    return average(there) if there else None


def draws_table(seed: Seed, labels: Iterable[str]) -> str:
    """Another draw of the rounding less the first."""
    rows = []
    for label in labels:
        other = again(RULES[label])
        gaps = [
            paired(seed, key(label, name, other.output, other.seed), key(label, name), domains_of(name))
            for name in SOME_SETS
        ]
        if any(gaps):
            rows.append([label, *(shown(gap, signed=True) for gap in gaps)])
    return markdown(["rule", *(ABOUT[name] for name in SOME_SETS)], rows) if rows else "Not scored: time was up."


def lacking_table(seeds: Sequence[Seed]) -> str:
    """What failed and what time did not allow, by rule."""
    rows = []
    for seed in seeds:
        failed, lacking = (
            seed.data["failed"],
            [name for name in seed.data["lacking"] if name not in seed.data["failed"]],
        )
        for what, names in ((f"failed: {reason(failed)}", failed), ("not scored: time was up", lacking)):
            told = ", ".join(f"{label} ({count})" for label, count in Counter(map(short, names)).most_common())
            rows += [[f"seed {seed.name}", len(names), told, what]] if names else []
    return markdown(["", "merges", "rules", "why"], rows).replace("---:", "---") if rows else "Nothing lacks."


def short(name: str) -> str:
    """A merge's rule, and how it is stored where it is otherwise."""
    label, _, output, *draw = name.split(" | ")
    return ", ".join([label, *([] if output == "stochastic" else [output]), *draw])


def reason(failed: dict[str, str]) -> str:
    """The last line of the first error."""
    return next(iter(failed.values())).strip().splitlines()[-1].rpartition(", expected")[0] if failed else ""


def densities(seed: Seed) -> list[float]:
    """Of the main agents that were scored."""
    return [seed.data["models"][name]["change"]["density"] for name in DOMAINS if seed.has(name)]


def by_seed(seeds: Sequence[Seed], make: Callable[[Seed], str]) -> str:
    """One table after another, each under its seed."""
    return "\n\n".join(f"{called(seed)}:\n\n{make(seed)}" for seed in seeds)


def called(seed: Seed) -> str:
    """By architecture and number."""
    return f"{'Gemma 3' if seed.data.get('architecture') == 'gemma3' else 'SmolLM2'}, seed {seed.number}"
