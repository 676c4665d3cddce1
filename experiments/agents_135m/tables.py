"""The tables of the pages as Markdown. Computes nothing but means and errors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from agents import AGENTS
from hypotheses import Verdict, paired
from plans import FLOATS, NEAREST, key
from results import Seed, Value, average, over
from rules import RULES
from sets import ABOUT, DAMAGED, HEALTHY, MODELS, SETS, domain_of, domains_of
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTRASTS = ("wudi exact", "RAM+ auto 1.1", "RAM+ auto", "RAM+", "RAM", "TA 1.0", "mean")
HARM_ROWS = ("mean", "TA 1.0", "TIES", "RAM", "RAM+", "RAM+ auto", "wudi_auto", "wudi_auto, advised")


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def shown(value: Value | None, *, signed: bool = False) -> str:
    """A cell; empty where it lacks."""
    return "" if value is None else value.signed if signed else str(value)


def verdict_table(found: Sequence[Verdict]) -> str:
    """What was said before, and what came of it."""
    rows = [[f"**{one.word}**", one.text, counted(one), one.worst + missing(one)] for one in found]
    return markdown(["", "said before", "cases against it", "the case that decides"], rows).replace("---:", "---")


def counted(verdict: Verdict) -> str:
    """How many cases speak against it."""
    return f"{verdict.against} of {verdict.cases - len(verdict.lacking)}"


def missing(verdict: Verdict) -> str:
    """How many cases have no score."""
    return f" ({len(verdict.lacking)} cases not scored)" if verdict.lacking else ""


def gap_table(
    seeds: Sequence[Seed],
    labels: Sequence[str],
    families: Sequence[str],
    sets: Sequence[str] = HEALTHY,
    *,
    strong: bool = True,
) -> str:
    """Each rule against the tuned baseline on every healthy set, mean of the seeds, in the order of the mean."""
    rows = []
    for label in dict.fromkeys(labels):
        gaps = [
            over(seeds, partial(Seed.gap, label=label, families=families, name=name, strong=strong)) for name in sets
        ]
        if any(gaps):
            rows.append((label, gaps))
    order = sorted(rows, key=lambda row: (row[1].count(None), -mean_of(row[1])))
    head = ["rule", *(ABOUT[name] for name in sets), "mean", "worst"]
    level = [shown(over(seeds, partial(baseline_score, families=families, name=name, strong=strong))) for name in sets]
    return markdown(head, [["*tuned baseline*", *level, "", ""], *(gap_row(label, gaps) for label, gaps in order)])


def gap_row(label: str, gaps: Sequence[Value | None]) -> list[str]:
    """Its cells, mean and worst; these are left empty where a set lacks, as they could not be compared."""
    there = [gap.mean for gap in gaps if gap]
    ends = [f"{mean_of(gaps):+.1f}", f"{min(there):+.1f}"] if len(there) == len(gaps) else ["", ""]
    return [label, *(shown(gap, signed=True) for gap in gaps), *ends]


def mean_of(gaps: Sequence[Value | None]) -> float:
    """Of those that are there."""
    there = [gap.mean for gap in gaps if gap]
    return sum(there) / len(there)


def baseline_score(seed: Seed, families: Sequence[str], name: str, *, strong: bool = True) -> Value | None:
    """The tuned baseline itself, on test."""
    found = seed.strongest(families, name) if strong else seed.baseline(families, name)
    return seed.mean(found, domains_of(name)) if found else None


def short_table(seeds: Sequence[Seed], labels: Sequence[str], families: Sequence[str]) -> str:
    """Mean and worst over the healthy sets, of the rules that were scored on all of them."""
    rows = []
    for label in dict.fromkeys(labels):
        gaps = {name: over(seeds, partial(Seed.gap, label=label, families=families, name=name)) for name in HEALTHY}
        there = {name: gap for name, gap in gaps.items() if gap}
        if len(there) == len(gaps):
            low = min(there, key=lambda name: there[name].mean)
            mean = average(list(there.values()))
            rows.append((mean.mean, [label, mean.signed, f"{there[low].signed} ({ABOUT[low]})"]))
    rows.sort(key=lambda row: -row[0])
    return markdown(["rule", "mean", "worst set"], [cells for _, cells in rows])


def tuned_table(seeds: Sequence[Seed], families: Sequence[str]) -> str:
    """The setting that dev chose, and its score on test."""
    rows = []
    for name in SETS:
        for seed in seeds:
            cells = [seed.chosen(family, name) for family in families]
            told = [f"{one.split(' | ')[0]}: {seed.mean(one, domains_of(name))}" if one else "" for one in cells]
            rows += [[f"{ABOUT[name]}, seed {seed.name}", *told]] if any(told) else []
    return markdown(["set", *families], rows)


def selection_table(seeds: Sequence[Seed], families: Sequence[str]) -> str:
    """Every rule on dev of the seeds that choose, against the tuned baseline on the same prompts."""
    rows = []
    for label in RULES:
        gaps = [over(seeds, partial(Seed.dev_gap, label=label, families=families, name=name)) for name in HEALTHY]
        there = [gap for gap in gaps if gap]
        if there:
            rows.append((average(there).mean, [label, len(there), f"{average(there).mean:+.1f}", worst(there)]))
    rows.sort(key=lambda row: -row[0])
    return markdown(["rule", "sets", "mean", "worst"], [cells for _, cells in rows])


def worst(gaps: Sequence[Value]) -> str:
    """The lowest, with its error."""
    return min(gaps, key=lambda gap: gap.mean).signed


def harm_table(seeds: Sequence[Seed], name: str, labels: Sequence[str] = HARM_ROWS) -> str:
    """A set with the damaged agent, domain by domain, mean of the seeds."""
    remedies = [label for label in labels_of(seeds, name) if label.startswith("wudi_auto, damaged")]
    rows = [["base", *domain_scores(seeds, "base")], ["damaged agent", *domain_scores(seeds, DAMAGED)]]
    rows += [[label, *domain_scores(seeds, key(label, name))] for label in dict.fromkeys((*labels, *remedies))]
    return markdown([ABOUT[name], *DOMAINS, "all"], [row for row in rows if any(row[1:])])


def domain_scores(seeds: Sequence[Seed], model: str) -> list[str]:
    """Every domain and all of them; empty where it was not scored."""
    parts = [[domain] for domain in DOMAINS] + [list(DOMAINS)]

    def score(seed: Seed, domains: list[str]) -> Value | None:
        return seed.mean(model, domains) if seed.has(model) else None

    return [shown(over(seeds, partial(score, domains=part))) for part in parts]


def labels_of(seeds: Sequence[Seed], name: str) -> list[str]:
    """What was tried on a set."""
    merges = [entry for seed in seeds for entry in seed.data["merges"].values()]
    return list(dict.fromkeys(entry["label"] for entry in merges if entry["set"] == name))


def rounding_table(seeds: Sequence[Seed], labels: Sequence[str] = (*FLOATS, *NEAREST)) -> str:
    """Rounded to the nearest and kept in float32, against stochastic rounding; mean of the sets that have both."""
    rows = []
    for label in dict.fromkeys(labels):
        cells = [shown(rounding(seeds, label, output), signed=True) for output in ("nearest", "float32")]
        rows.append([label, *cells, survived(seeds, label)])
    head = ["rule", "nearest", "float32", "nearest: scaled unique elements that stay scaled"]
    there = [row for row in rows if any(row[1:3])]
    return markdown(head, there) if there else "Not scored at this scale: time was up before."


def rounding(seeds: Sequence[Seed], label: str, output: str) -> Value | None:
    """The difference that an output makes."""
    gaps = []
    for name in SETS:
        other, mine = key(label, name), key(label, name, output)
        gaps += [gap for seed in seeds if (gap := paired(seed, mine, other, domains_of(name)))]
    return average(gaps) if gaps else None


def survived(seeds: Sequence[Seed], label: str) -> str:
    """Mean share over agents and sets, of what the product's records say."""
    shares = [
        agent["rescale_survived"]
        for seed in seeds
        for entry in seed.data["merges"].values()
        if (entry["label"], entry["output"]) == (label, "nearest")
        for agent in entry["told"].values()
        if agent["rescale_survived"] is not None
    ]
    return f"{sum(shares) / len(shares):.0%}" if shares else ""


def agents_table(seeds: Sequence[Seed]) -> str:
    """What every agent changed and learned."""
    rows = []
    for seed in seeds:
        for name in MODELS[1:]:
            if seed.has(name):
                own, change = [domain_of(name)], seed.data["models"][name]["change"]
                facts = [f"{change['density']:.1%}", f"{change['norm']:.2f}"]
                rows.append([f"{name}, seed {seed.name}", *facts, seed.mean("base", own), seed.mean(name, own)])
    return markdown(["agent", "density", "norm of its change", "base on its domain", "itself"], rows)


def damage_table(seeds: Sequence[Seed]) -> str:
    """What the damaged agent lost, on test."""
    rows = []
    for seed in seeds:
        if seed.has(DAMAGED):
            found = seed.data["training"].get(DAMAGED, {})
            gaps = [seed.mean(DAMAGED, [domain], against="base").signed for domain in DOMAINS]
            about = f"seed {seed.name}: {found.get('broken') or 'nothing'} broke at step {found.get('step')}"
            rows.append([about, *gaps])
    return markdown(["against the base", *DOMAINS], rows)


def time_table(seeds: Sequence[Seed]) -> str:
    """GPU time of every step."""
    rows = []
    for seed in seeds:
        times: dict[str, Any] = seed.data["training"].get("times", {})
        count = len([name for name in seed.data["models"] if name in AGENTS])
        for step, about in (("cold", "base"), ("agents", f"{count} agents"), ("grams", "Gram matrices")):
            if step in times:
                rows.append([f"{about}, seed {seed.name}", *seconds(times[step]), ""])
        for run in seed.data["runs"]:
            rows.append([f"merge and score, seed {seed.name}", *seconds(run), run["scored"]])
        guard = seed.data["training"].get("harm", {})
        if "seconds" in guard:
            rows.append([f"the guard, seed {seed.name}", f"{guard['seconds']:.0f}", f"{guard['seconds']:.0f}", ""])
    return markdown(["step", "seconds", "GPU seconds", "models scored"], rows)


def seconds(found: dict[str, Any]) -> list[str]:
    """Of the wall and of GPUs."""
    return [f"{found['wall_seconds']:.0f}", f"{found['gpu_seconds']:.0f}"]


def merge_time_table(seeds: Sequence[Seed]) -> str:
    """Median seconds of a merge by rule, over sets and seeds, and where."""
    rows = []
    for label in RULES:
        found = [e for seed in seeds for e in seed.data["merges"].values() if e["label"] == label]
        times = sorted(entry["merge_seconds"] for entry in found)
        if times:
            rows.append([label, len(times), f"{times[len(times) // 2]:.1f}", found[0]["merged_on"]])
    return markdown(["rule", "merges", "seconds", "on"], rows)


def failure_table(seeds: Sequence[Seed]) -> str:
    """What lacks: merges that failed, and those that time did not allow."""
    rows = []
    for seed in seeds:
        rows += [[f"seed {seed.name}", name, error.splitlines()[0]] for name, error in seed.data["failed"].items()]
        if not seed.data["runs"]:
            rows.append([f"seed {seed.name}", "the end of its run", "cut off: its time and what lacks were not noted"])
        if seed.data["lacking"]:
            rows.append([f"seed {seed.name}", f"{len(seed.data['lacking'])} merges", "not scored: time was up"])
    return markdown(["", "what", "why"], rows).replace("---:", "---") if rows else "Nothing lacks."


def set_table() -> str:
    """Which agents are in which set."""
    rows = [[ABOUT[name], ", ".join(agents), len(domains_of(name))] for name, agents in SETS.items()]
    return markdown(["set", "agents", "domains scored"], rows)
