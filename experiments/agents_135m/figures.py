"""The figures of docs/evidence.md. Computes nothing but means."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from hypotheses import confirming
from matplotlib import pyplot as plt
from plans import key
from results import Seed, over
from sets import ABOUT, HARM, HEALTHY, SETS, domains_of
from tasks import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHOWN = {"RAM": "#b0b0b0", "RAM+": "#7f9fbf", "RAM+ auto": "#3b6ea5", "wudi_auto": "#c44e52"}
REMEDY = {
    "mean": "#b0b0b0",
    "RAM+": "#7f9fbf",
    "TIES": "#d9a441",
    "wudi_auto": "#c44e52",
    "wudi_auto, advised": "#5a9e6f",
}


def draw_all(seeds: Sequence[Seed], registered: dict[str, Any], folder: Path) -> None:
    """Write every figure."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "agentmerge"
    these = confirming(seeds, registered) or list(seeds)
    draw = {
        "gaps": partial(gaps, these, registered),
        "harm": partial(harm, these),
        "retention": partial(retention, these),
        "rewards": partial(rewards, list(seeds)),
    }
    for name, make in draw.items():
        figure = make()
        if name != "rewards":
            mean = "mean of " * (len(these) > 1 and name != "retention")  # there each seed has points of its own
            figure.suptitle(mean + " and ".join(f"seed {seed.number}" for seed in these))
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def gaps(seeds: Sequence[Seed], registered: dict[str, Any]) -> Any:
    """Every healthy set: rules less the tuned baseline."""
    figure, axis = plt.subplots(figsize=(11, 3.8))
    width = 0.8 / len(SHOWN)
    for place, (label, colour) in enumerate(SHOWN.items()):
        found = {}
        for x, name in enumerate(HEALTHY):
            value = over(seeds, partial(Seed.gap, label=label, families=registered["tuned"], name=name))
            if value:
                found[x + (place - (len(SHOWN) - 1) / 2) * width] = value
        heights, errors = [v.mean for v in found.values()], [v.error for v in found.values()]
        axis.bar(list(found), heights, width, yerr=errors, label=label, color=colour)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(HEALTHY)), [ABOUT[name] for name in HEALTHY], rotation=25, ha="right")
    axis.set(ylabel="points above the tuned baseline")
    axis.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return figure


def harm(seeds: Sequence[Seed]) -> Any:
    """Sets with the damaged agent: every domain, less the base."""
    figure, axes = plt.subplots(len(HARM), 1, figsize=(11, 2.7 * len(HARM)), squeeze=False, sharex=True)
    width = 0.8 / len(REMEDY)
    for axis, name in zip(axes[:, 0], HARM, strict=True):
        for place, (label, colour) in enumerate(REMEDY.items()):
            mine = key(label, name)
            if not all(seed.has(mine) and seed.has("base") for seed in seeds):
                continue
            found = [over(seeds, partial(Seed.mean, name=mine, domains=[d], against="base")) for d in DOMAINS]
            heights = [value.mean for value in found if value]
            xs = [x + (place - (len(REMEDY) - 1) / 2) * width for x in range(len(heights))]
            axis.bar(xs, heights, width, label=label, color=colour)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(DOMAINS)), list(DOMAINS))
        axis.set(ylabel="points above the base", title=f"{ABOUT[name]}: {', '.join(SETS[name])}")
    axes[0, 0].legend(ncols=len(REMEDY), fontsize="small")
    return figure


def retention(seeds: Sequence[Seed]) -> Any:
    """Every merge of the sets of three and five: score against what it keeps."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8))
    for axis, name in zip(axes, ("E3", "E5"), strict=True):
        for mark, seed in zip("ox+^", seeds, strict=False):
            points = [
                (sum(e["retention"].values()) / len(e["retention"]), seed.mean(k, domains_of(name)).mean, "wudi" in k)
                for k, e in seed.data["merges"].items()
                if e["set"] == name and "test" in e
            ]
            for whole, colour, label in ((False, "#3b6ea5", "others"), (True, "#c44e52", "WUDI")):
                chosen = [(x, y) for x, y, wudi in points if wudi == whole]
                xs, ys = [x for x, _ in chosen], [y for _, y in chosen]
                axis.scatter(xs, ys, marker=mark, color=colour, label=f"{label}, seed {seed.number}")
        axis.set(xlabel="mean retention of the agents' changes", ylabel="right answers, %", title=ABOUT[name])
    axes[0].legend(fontsize="small")
    return figure


def rewards(seeds: Sequence[Seed]) -> Any:
    """The agents' rewards while they train."""
    figure, axes = plt.subplots(1, max(1, len(seeds)), figsize=(4.2 * max(1, len(seeds)), 3.6), squeeze=False)
    for axis, seed in zip(axes[0], seeds, strict=False):
        for name in DOMAINS:
            curve = seed.data["training"].get("curves", {}).get(name, [])
            axis.plot([step for step, _ in curve], [reward for _, reward in curve], label=name)
        axis.set(xlabel="step", ylabel="reward", title=f"seed {seed.number}")
    axes[0, 0].legend(fontsize="small")
    return figure
