"""Write docs/evidence.md and docs/figures/evidence from results/*.json and findings.md.

python experiments/tiny_agents/report.py
"""

from __future__ import annotations

from pathlib import Path

import tables
from figures import draw_all
from results import Seed
from settings import SEEDS

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


def main() -> None:
    """Put the tables where findings.md names them: {main_table}, {overlap_table} and so on."""
    seeds = [Seed.read(number) for number in SEEDS]
    draw_all(seeds, DOCS / "figures" / "evidence")
    several = ("training", "overlap", "output", "ablation", "sets", "rescale", "region", "untuned")
    made = {f"{name}_table": getattr(tables, f"{name}_table")(seeds) for name in several}
    made |= {f"main_table_{seed.number}": tables.main_table(seed) for seed in seeds}
    text = (HERE / "findings.md").read_text()
    for name, table in made.items():
        text = text.replace(f"{{{name}}}", table)
    (DOCS / "evidence.md").write_text(text)


if __name__ == "__main__":
    main()
