"""Draw what run.py measured: python benchmarks/plot.py RESULTS.json OUT.svg (needs matplotlib)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

OURS, FLOOR = "#0072B2", "#BBBBBB"  # a palette that colour-blind readers can tell apart


def main() -> None:
    results = json.loads(Path(sys.argv[1]).read_text())
    rows = results["rows"]
    labels = [f"{row['method']}, {row['shape']}, {row['agents']} agents" for row in rows]
    plt.rcParams["svg.hashsalt"] = "agentmerge"
    figure, axes = plt.subplots(figsize=(7, 0.45 * len(rows) + 1.2))
    places = range(len(rows))
    axes.barh(places, [row["seconds"]["median"] for row in rows], color=OURS, height=0.7, label="merge")
    floors = [row["floor"]["median"] for row in rows]
    axes.barh(places, floors, color=FLOOR, height=0.35, label="floor: read the inputs as often, write the output once")
    for place, row in zip(places, rows, strict=True):
        text = f" {row['seconds']['median']:.1f} s, {row['peak_mb']:.0f} MB"
        axes.text(max(row["seconds"]["median"], row["floor"]["median"]), place, text, va="center", fontsize=8)
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlabel("seconds (median)")
    axes.set_title(results["machine"], fontsize=8, loc="left")
    axes.legend(fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
