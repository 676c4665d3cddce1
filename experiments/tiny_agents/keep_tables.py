"""The table of docs/grams.md, from results/keep.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "grams.md"


def tables(results: dict[str, Any]) -> dict[str, list[str]]:
    """By the name of their marks: each rule, mean over the sets, and the domain that fell furthest."""
    lines = ["| rule | agents' own domains | untrained ones, against the base | the worst |", "|---|---:|---:|---:|"]
    base, merges = results["base"], results["merges"]
    for label in next(iter(merges.values())):
        own, rest = [], []
        for text, found in merges.items():
            names = text.split("+")
            own += [sum(found[label][name] for name in names) / len(names)]
            rest += [(found[label][name] - base[name], name, text) for name in base if name not in names]
        lost, domain, where = min(rest)
        mean = sum(gap for gap, *_ in rest) / len(rest)
        cells = f"{100 * sum(own) / len(own):.1f} | {100 * mean:+.1f} | {100 * lost:+.1f} ({domain}, {where})"
        lines.append(f"| {label} | {cells} |")
    return {"keep": lines}
