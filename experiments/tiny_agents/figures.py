"""The figures of docs/evidence-tiny.md. Computes nothing but means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from merges import ALL, TRIO, TUNED
from results import Seed, key, retention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def draw_all(seeds: Sequence[Seed], folder: Path) -> None:
    """Write every figure."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "agentmerge"
    figures: dict[str, Callable[[Seed, Any], None]] = {
        "rewards": rewards,
        "density": density,
        "regions": regions,
        "rescale": rescale,
        "retention": kept,
    }
    for name, draw in figures.items():
        figure, axes = plt.subplots(1, len(seeds), figsize=(5.5 * len(seeds), 3.6), squeeze=False)
        for seed, axis in zip(seeds, axes[0], strict=True):
            draw(seed, axis)
            axis.set_title(f"seed {seed.number}")
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def rewards(seed: Seed, axis: Any) -> None:
    """Mean reward of a step's samples, smoothed over ten steps."""
    for name in ALL:
        curve = [entry["reward"] for entry in seed.data["training"][name]["history"]]
        smooth = [sum(curve[max(i - 9, 0) : i + 1]) / len(curve[max(i - 9, 0) : i + 1]) for i in range(len(curve))]
        axis.plot(smooth, label=name)
    axis.set(xlabel="step", ylabel="reward")
    axis.legend()


def density(seed: Seed, axis: Any) -> None:
    """Figure 2: what is unique and what is shared, as shares of all elements."""
    survey = seed.data["survey"]["trio"]
    agents = survey["agents"]
    unique = [agent["unique"] / survey["elements"] for agent in agents.values()]
    shared = [agent["shared"] / survey["elements"] for agent in agents.values()]
    axis.bar(list(agents), shared, label="shared")
    axis.bar(list(agents), unique, bottom=shared, label="unique")
    axis.set(ylabel="share of the elements")
    axis.legend()


def regions(seed: Seed, axis: Any) -> None:
    """Figure 3: an agent's unique region alone, diluted and whole, on its own domain."""
    bars = {"base": "base", "unique / 3": "{} unique x0.33", "unique": "{} unique x1", "agent": "{}"}
    for place, (label, pattern) in enumerate(bars.items()):
        names = [pattern.format(agent) for agent in TRIO]
        names = [key(name, TRIO, "nearest") if " " in name else name for name in names]
        heights = [seed.mean(name, [agent]).mean for name, agent in zip(names, TRIO, strict=True)]
        axis.bar([i + 0.2 * place for i in range(len(TRIO))], heights, 0.2, label=label)
    axis.set_xticks([i + 0.3 for i in range(len(TRIO))], TRIO)
    axis.set(ylabel="right answers on its own domain, %", ylim=(0, 100))
    axis.legend(ncols=4, loc="upper center", fontsize="small")


def rescale(seed: Seed, axis: Any) -> None:
    """Figure 5: the average against r, in both roundings."""
    points = {0.0: "RAM", **{float(label.split()[-1]): label for label in TUNED["RAM+"]}}
    for output in ("nearest", "stochastic"):
        values = [seed.mean(key(label, TRIO, output), TRIO) for label in points.values()]
        axis.errorbar(list(points), [v.mean for v in values], [v.error for v in values], label=output, capsize=2)
    axis.set(xlabel="rescale r, clip 2", ylabel="average, %")
    axis.legend()


def kept(seed: Seed, axis: Any) -> None:
    """Every merge of the three agents: score against mean retention."""
    for output, mark in (("nearest", "o"), ("stochastic", "x"), ("float32", "+")):
        names = [
            name
            for name, entry in seed.data["merges"].items()
            if entry["output"] == output and tuple(entry["agents"]) == TRIO and entry["family"] != "region"
        ]
        axis.scatter(
            [retention(seed, name) for name in names],
            [seed.mean(name, TRIO).mean for name in names],
            marker=mark,
            label=output,
        )
    axis.set(xlabel="mean retention of the agents' changes", ylabel="average, %")
    axis.legend()
