"""The tables of docs/evidence-tiny.md as Markdown. Computes nothing but means and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merges import ALL, OUTPUTS, PAPER, SETS, TRIO, TUNED, UNTUNED
from results import Seed, Value, key, retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def training_table(seeds: Sequence[Seed]) -> str:
    """What was trained, for how long, and what it changed."""
    rows = []
    for seed in seeds:
        survey = seed.data["survey"]
        for name in ("base", *ALL, "supervised"):
            note = seed.data["training"][name]
            seen = {**survey["all"]["agents"], **survey["supervised"]["agents"]}.get(name)
            own = "tool" if name == "supervised" else name
            scores = [seed.mean(model, [own]) for model in ("base", name)] if name != "base" else [None, None]
            gain = [str(score) if score else "" for score in scores]
            density = f"{seen['density']:.1%}" if seen else ""
            rows.append(
                [f"{name}, seed {seed.number}", len(note["history"]), f"{note['cpu_seconds']:.0f}", density, *gain]
            )
    head = ["checkpoint", "logged steps", "seconds of one core", "density", "base on its domain", "itself"]
    return markdown(head, rows)


def overlap_table(seeds: Sequence[Seed]) -> str:
    """Figure 2 in numbers."""
    rows = [
        [
            f"{name}, seed {seed.number}",
            f"{agent['density']:.1%}",
            f"{agent['unique'] / agent['changed']:.1%}",
            "inf" if agent["overlap_unique_ratio"] is None else f"{agent['overlap_unique_ratio']:.2f}",
            f"{agent['scale']:.3f}",
        ]
        for seed in seeds
        for name, agent in seed.data["survey"]["trio"]["agents"].items()
    ]
    return markdown(["agent", "density", "unique of its changes", "rho", "lambda at r 0.1, alpha 2"], rows)


def main_table(seed: Seed) -> str:
    """Table 1: base, specialists, every family at its usual setting and at the one that dev chose."""
    tasks = list(seed.right("base", "test", TRIO))
    rows = [scored(seed, name, name, tasks, TRIO) for name in ("base", *TRIO)]
    for family, usual in PAPER.items():
        rows.append(scored(seed, f"{usual}", key(usual, TRIO, "nearest"), tasks, TRIO))
        chosen = seed.best(TUNED[family], TRIO)
        if chosen != key(usual, TRIO, "nearest"):
            rows.append(scored(seed, f"{chosen.split(' | ')[0]} (dev)", chosen, tasks, TRIO))
    rows.append(scored(seed, "RAM+ auto, stochastic", key("RAM+ auto", TRIO, "stochastic"), tasks, TRIO))
    return markdown(["model", *tasks, "average"], rows)


def scored(seed: Seed, label: str, name: str, tasks: Sequence[str], agents: Sequence[str]) -> list[str]:
    """One row: every sub-task and the average."""
    right = seed.right(name, "test", agents)
    return [label, *(f"{100 * right[task].mean():.1f}" for task in tasks), str(seed.mean(name, agents))]


def output_table(seeds: Sequence[Seed]) -> str:
    """Every family's usual setting in three outputs."""
    rows = []
    for label in PAPER.values():
        cells = [
            seed.mean(key(label, TRIO, output), TRIO) if seed.has(label, TRIO, output) else ""
            for seed in seeds
            for output in OUTPUTS
        ]
        rows.append([label, *cells])
    return markdown(["method", *(f"{output}, seed {seed.number}" for seed in seeds for output in OUTPUTS)], rows)


def ablation_table(seeds: Sequence[Seed]) -> str:
    """Table 2: what each part of RAM+ adds over averaging, paired with RAM in the same output."""
    labels = ["TA 0.33", "RAM", "RAM+ r 0.1", "RAM+s r 0.1", "RAM+ r 0.5"]
    rows = []
    for label in labels:
        cells: list[object] = []
        for seed in seeds:
            for output in OUTPUTS[:2]:
                name, ram = key(label, TRIO, output), key("RAM", TRIO, output)
                cells.append(seed.mean(name, TRIO) if label == "RAM" else signed(seed.mean(name, TRIO, against=ram)))
        rows.append([label if label == "RAM" else f"{label}, against RAM", *cells])
    return markdown(["merge", *(f"{output}, seed {s.number}" for s in seeds for output in OUTPUTS[:2])], rows)


def sets_table(seeds: Sequence[Seed]) -> str:
    """Tables 4 to 6: other sets of agents; the best of TA and of TIES is chosen on dev."""
    rows = []
    for agents in SETS:
        for seed in seeds:
            cells = [str(seed.mean("base", agents)), *(str(best_of(seed, family, agents)) for family in BASELINES)]
            for label in ("TA 1.0", "RAM", "RAM+ r 0.1", "RAM+ auto", "calibrated RAM"):
                cells.append(str(seed.mean(key(label, agents, "stochastic"), agents)))
            rows.append([f"{' + '.join(agents)}, seed {seed.number}", *cells])
    head = [
        "agents",
        "base",
        "TA, tuned",
        "TIES, tuned",
        "TA 1.0",
        "RAM",
        "RAM+",
        "RAM+ auto",
        "calibrated RAM",
    ]
    return markdown(head, rows)


BASELINES = ("Task Arithmetic", "TIES")


def best_of(seed: Seed, family: str, agents: Sequence[str]) -> Value:
    """Test score of the setting that dev chose."""
    return seed.mean(seed.best(TUNED[family], agents), agents)


def rescale_table(seeds: Sequence[Seed]) -> str:
    """Table 12: r, with alpha 2."""
    rows = []
    for label in ("RAM", *TUNED["RAM+"]):
        cells = [seed.mean(key(label, TRIO, output), TRIO) for seed in seeds for output in OUTPUTS[:2]]
        kept = [retention(seed, key(label, TRIO, "stochastic")) for seed in seeds]
        rows.append([label, *cells, *(f"{value:.2f}" for value in kept)])
    head = [f"{output}, seed {s.number}" for s in seeds for output in OUTPUTS[:2]]
    return markdown(["merge", *head, *(f"retention, seed {s.number}" for s in seeds)], rows)


def region_table(seeds: Sequence[Seed]) -> str:
    """Figure 3 in numbers: an agent's region alone, on its own domain."""
    rows = []
    for seed in seeds:
        for agent in TRIO:
            parts = [f"{agent} unique x0.33", f"{agent} unique x1", f"{agent} shared x1"]
            cells = [seed.mean(key(part, TRIO, "nearest"), [agent]) for part in parts]
            rows.append([f"{agent}, seed {seed.number}", seed.mean("base", [agent]), *cells, seed.mean(agent, [agent])])
    return markdown(["agent", "base", "unique / 3", "unique", "shared", "agent"], rows)


def untuned_table(seeds: Sequence[Seed]) -> str:
    """Each untuned setting against the best tuned baseline, paired, on every set of agents."""
    rows = []
    for label in UNTUNED:
        gaps = [gap(seed, label, agents) for agents in SETS for seed in seeds]
        shown = [signed(value) for value in gaps]
        rows.append((sum(v.mean for v in gaps) / len(gaps), min(v.mean for v in gaps), [label, *shown]))
    rows.sort(key=lambda row: -row[0])
    head = ["untuned setting", *(f"{'+'.join(a)}, seed {s.number}" for a in SETS for s in seeds), "mean", "worst"]
    return markdown(head, [[*cells, f"{mean:+.1f}", f"{worst:+.1f}"] for mean, worst, cells in rows])


def gap(seed: Seed, label: str, agents: Sequence[str]) -> Value:
    """An untuned setting, rounded stochastically, against the better of tuned TA and TIES (both chosen on dev)."""
    labels = [label for family in BASELINES for label in TUNED[family]]
    return seed.mean(key(label, agents, "stochastic"), agents, against=seed.best(labels, agents))


def signed(value: Value) -> str:
    """A difference."""
    return f"{value.mean:+.1f} ± {value.error:.1f}"
