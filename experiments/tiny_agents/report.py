"""Write docs/evidence-tiny.md and docs/figures/evidence from results/*.json and findings.md.

python experiments/tiny_agents/report.py
"""

from __future__ import annotations

from pathlib import Path

import tables
from results import Seed
from settings import SEEDS

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


def main() -> None:
    """The page, and its figures."""
    from figures import draw_all

    draw_all(results(), DOCS / "figures" / "evidence")
    (DOCS / "evidence-tiny.md").write_text(text())


def results() -> list[Seed]:
    """What was saved."""
    return [Seed.read(number) for number in SEEDS]


def text() -> str:
    """The page, tables put where findings.md names them: {main_table}, {overlap_table} and so on."""
    seeds = results()
    several = ("training", "overlap", "output", "ablation", "sets", "rescale", "region", "untuned")
    made = {f"{name}_table": getattr(tables, f"{name}_table")(seeds) for name in several}
    made |= {f"main_table_{seed.number}": tables.main_table(seed) for seed in seeds}
    page = (HERE / "findings.md").read_text(encoding="utf-8")
    for name, table in made.items():
        page = page.replace(f"{{{name}}}", table)
    return page


if __name__ == "__main__":
    main()
