"""The tables of docs/harm.md, from results/harm.json."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "harm.md"
WAYS = {"as they are": "as it is", "advised": "as advised", "half": "weight 0.5", "left out": "left out"}


def written(results: dict[str, Any]) -> None:
    """Put every table between its marks in the page."""
    put(PAGE, tables(results))


def put(path: Path, tables: dict[str, list[str]]) -> None:
    """Tables between their marks in a page."""
    page = path.read_text()
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        page = re.sub(
            f"{begin}.*?{end}", lambda _, b=begin, e=end, t=lines: b + "\n".join(t) + f"\n{e}", page, flags=re.S
        )
    path.write_text(page)


def tables(results: dict[str, Any]) -> dict[str, list[str]]:
    """All of them by name."""
    return {"drops": drops(results), "merges": merges(results), "places": places(results)}


def drops(results: dict[str, Any]) -> list[str]:
    """What each agent did to every skill that is not its own, and what became of the score."""
    lines = ["| agent | skill | drop | answers kept | score, base to agent | found |", "|---|---|---|---|---|---|"]
    groups = [(row["agent"], results["agents"][row["agent"]], row) for row in results["healthy"]["rows"]]
    for name, found in results["damaged"].items():
        groups += [(f"{name}, damaged", found["scores"], row) for row in found["rows"] if row["agent"] == name]
    for label, scores, row in groups:
        if not row["own"]:
            before, after = results["base"][row["skill"]], scores[row["skill"]]
            told = f"{row['drop']:.2f} +- {row['error']:.2f} | {row['kept_answers']:.0%}"
            lines.append(
                f"| {label} | {row['skill']} | {told} | {100 * before:.0f} to {100 * after:.0f} % | "
                f"{'**harm**' if row['harmed'] else '-'} |"
            )
    return lines


def merges(results: dict[str, Any]) -> list[str]:
    """Mean over the four domains, and the worst domain against the base, for each way to treat the damaged agent."""
    lines = [f"| damaged | method | {' | '.join(WAYS.values())} |", f"|---|---|{'---|' * len(WAYS)}"]
    for name, found in results["damaged"].items():
        for label, ways in found["merges"].items():
            cells = [cell(ways[way], results["base"]) if way in ways else "-" for way in WAYS]
            lines.append(f"| {name} | {label} | {' | '.join(cells)} |")
    return lines


def cell(scores: dict[str, float], base: dict[str, float]) -> str:
    """The mean, and the domain that is worst against the base."""
    worst = min(scores, key=lambda domain: scores[domain] - base[domain])
    lost = 100 * (scores[worst] - base[worst])
    return f"{100 * sum(scores.values()) / len(scores):.1f} ({worst} {lost:+.0f})"


def places(results: dict[str, Any]) -> list[str]:
    """How the ways to place the damage go with what skipping really gains."""
    lines = ["| damaged | drop | trace: correlation, sum | Fisher | each place alone |", "|---|---|---|---|---|"]
    for name, found in results["damaged"].items():
        if where := found["places"]:
            cells = [
                f"{where['correlation'][way]:.2f}, {where['sum'][way]:.2f}" for way in ("trace", "fisher", "alone")
            ]
            lines.append(f"| {name} | {where['drop']:.2f} | {' | '.join(cells)} |")
    return lines
