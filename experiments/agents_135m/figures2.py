"""The second study's figures of docs/evidence.md. Computes nothing but means."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from hypotheses import confirming, paired
from matplotlib import pyplot as plt
from plans import key
from results import Seed, Value
from rules import DEFAULTS, WIDE
from sets import ABOUT, HARM, SETS, untrained
from study2 import EVERYWHERE
from tables2 import against, called, ends, kept, own_gaps, single_gaps
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLOURS = {
    "mean": "#b0b0b0",
    "TA 1.0": "#8d7f74",
    "RAM": "#a3c1dd",
    "RAM+": "#3b6ea5",
    "TIES": "#d9a441",
    "wudi_auto": "#e3a3a6",
}
"""Of what the recommended rule is shown beside."""
MINE = "#b5262c"
LEFT = -45
"""Points where the figure of all methods ends; what lies beyond it is told by number."""


def draw_all(seeds: Sequence[Seed], registered: dict[str, Any], folder: Path) -> None:
    """Write every figure."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "agentmerge"
    these, rule = confirming(seeds, registered), registered["recommended"]
    choosing = [seed for seed in seeds if seed.name in registered["selection_seeds"]]
    draw = {
        "untrained": partial(untrained_figure, these, rule),
        "damaged": partial(damaged_figure, these, registered["with_damage"]),
        "ways": partial(ways_figure, [*choosing, *these], rule, registered["tuned"]),
    }
    for name, make in draw.items():
        save(make(), folder / f"{name}.svg")


def draw_methods(seed: Seed, folder: Path) -> None:
    """Every method of the seed that scored them all."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "agentmerge"
    save(methods_figure(seed, EVERYWHERE), folder / "methods.svg")


def save(figure: Any, path: Path) -> None:
    """Write it; the same figure gives the same bytes."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def methods_figure(seed: Seed, families: Sequence[str]) -> Any:
    """Each method at its default: every set as a point, their mean as a line, against the tuned baseline.

    In the order of `methods_table`.
    """
    gaps = {name: own_gaps(seed, label, families) for name, label in DEFAULTS.items()}
    found = {name: one for name, gap in gaps.items() if (one := ends(gap))}
    means = {name: one.mean.mean for name, one in found.items()}
    less = {name: ends(against(seed, DEFAULTS[name], "wudi_auto")) for name in found}
    order = sorted(found, key=lambda name: one.mean.mean if (one := less[name]) else 0.0)
    figure, axis = plt.subplots(figsize=(9, 0.26 * len(order) + 1))
    for place, name in enumerate(order):
        there = [gap.mean for gap in gaps[name].values() if gap]
        colour = MINE if name == "wudi_auto" else "#3b6ea5"
        axis.plot(there, [place] * len(there), "o", color=colour, alpha=0.5, ms=4)
        axis.plot([means[name]] * 2, [place - 0.35, place + 0.35], color=colour, lw=2)
    axis.axvline(0, color="black", linewidth=0.8)
    most = max(one.count for one in found.values())
    few = {name: f" ({one.count} sets)" if one.count < most else "" for name, one in found.items()}
    told = [f"{name}{few[name]}" if means[name] > LEFT else f"{name}: {means[name]:.0f}" for name in order]
    axis.set_yticks(range(len(order)), told, fontsize="small")
    axis.set(xlabel="points from the better of tuned Task Arithmetic and TIES", ylim=(-0.6, len(order) - 0.4))
    axis.set_xlim(left=max(LEFT, axis.get_xlim()[0]))
    axis.grid(axis="x", lw=0.3)
    return figure


def untrained_figure(seeds: Sequence[Seed], rule: str) -> Any:
    """Points from the base on what no agent of a set was trained on, a panel a seed."""
    figure, axes = plt.subplots(max(1, len(seeds)), 1, figsize=(11, 3.1 * max(1, len(seeds))), squeeze=False)
    names = [name for name in SETS if untrained(name) and any(kept(seed, rule, name) for seed in seeds)]
    for axis, seed in zip(axes[:, 0], seeds, strict=False):
        cases = {label: [kept(seed, label, name) for name in names] for label in (*COLOURS, rule)}
        bars(axis, cases, [ABOUT[name] for name in names])
        axis.set(ylabel="points from the base", title=called(seed))
    legend(axes[0, 0])
    return figure


def damaged_figure(seeds: Sequence[Seed], rule: str) -> Any:
    """Sets with the damaged agent: every domain less the base, a column a seed."""
    size = (7.5 * max(1, len(seeds)), 2.6 * len(HARM))
    figure, axes = plt.subplots(len(HARM), max(1, len(seeds)), figsize=size, squeeze=False, sharey="row")
    for column, seed in enumerate(seeds):
        for row, name in enumerate(HARM):
            cases = {
                label: [paired(seed, key(label, name), "base", [domain]) for domain in DOMAINS]
                for label in (*COLOURS, rule)
                if label != "TA 1.0"  # far below, it would hide the others
            }
            bars(axes[row, column], cases, list(DOMAINS))
            axes[row, column].set_title(f"{called(seed)}; {ABOUT[name]}: {', '.join(SETS[name])}", fontsize="small")
        axes[0, column].margins(y=0.1)
    for row in range(len(HARM)):
        axes[row, 0].set_ylabel("points from the base")
    legend(axes[0, 0])
    return figure


def bars(axis: Any, cases: dict[str, list[Value | None]], names: list[str]) -> None:
    """Groups of bars with their errors; what lacks is left out."""
    width = 0.85 / len(cases)
    for place, (label, values) in enumerate(cases.items()):
        there = {x: value for x, value in enumerate(values) if value}
        xs = [x + (place - (len(cases) - 1) / 2) * width for x in there]
        heights, errors = [value.mean for value in there.values()], [value.error for value in there.values()]
        axis.bar(xs, heights, width, yerr=errors, label=label, color=COLOURS.get(label, MINE), error_kw={"lw": 0.6})
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(names)), names, fontsize="small")


def legend(axis: Any) -> None:
    """Above the first panel."""
    axis.legend(ncols=len(COLOURS) + 1, loc="lower center", bbox_to_anchor=(0.5, 1.12), frameon=False, fontsize="small")


def ways_figure(seeds: Sequence[Seed], rule: str, families: Sequence[str]) -> Any:
    """What a rule gains where agents were trained, against the worst that it does where none was, a panel a seed."""
    figure, axes = plt.subplots(1, max(1, len(seeds)), figsize=(5.2 * max(1, len(seeds)), 4.4), squeeze=False)
    for axis, seed in zip(axes[0], seeds, strict=False):
        sets = ends(own_gaps(seed, "wudi_auto", families))
        for label in dict.fromkeys((*WIDE, rule)):
            own, left = ends(own_gaps(seed, label, families)), ends(single_gaps(seed, label))
            if own and left and sets and own.count == sets.count:
                colour = MINE if label == rule else "#d9777b" if "keep" in label else "#3b6ea5"
                place = (left.worst.mean, own.mean.mean)
                axis.errorbar(*place, xerr=left.worst.error, yerr=own.mean.error, color=colour, marker="o", lw=0.8)
                axis.annotate(label, place, xytext=(0, 5), textcoords="offset points", size=7, ha="center")
        axis.axhline(0, color="black", linewidth=0.8)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.margins(x=0.15, y=0.1)
        axis.set(xlabel="worst domain without an agent, points from the base", title=called(seed))
    axes[0, 0].set_ylabel("own domains, points from the tuned baseline")
    return figure
