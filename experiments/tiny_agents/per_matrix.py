"""One factor for the model against one per matrix, on the shipped agents in float32: a table of docs/evidence-tiny.md.

python experiments/tiny_agents/per_matrix.py
"""

from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import agentmerge
from agentmerge.demo.contest import COUNT, TASKS
from agentmerge.demo.shipped import TRIO, folder
from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.score import Score, score

WUDI = {"name": "wudi", "solver": "exact"}
METHODS: dict[str, dict[str, Any]] = {
    "unscaled": WUDI,
    "one factor": {"name": "calibrate", "then": WUDI},
    "one per matrix": {"name": "calibrate", "per": "matrix", "then": WUDI},
}


def main() -> None:
    """A line for each set of agents."""
    print("set", *METHODS, "difference", sep=" | ")
    for names in (*combinations(TRIO, 2), TRIO):
        scores = {label: scored(names, method) for label, method in METHODS.items()}
        one, each = scores["one factor"], scores["one per matrix"]
        apart = f"{100 * (each.mean() - one.mean()):+.1f} ± {100 * each.error(against=one):.1f}"
        print(", ".join(names), *(f"{100 * s.mean():.1f}" for s in scores.values()), apart, sep=" | ", flush=True)


def scored(names: tuple[str, ...], method: dict[str, Any]) -> Score[Any]:
    """The sub-tasks of these agents on test, after merging them."""
    with tempfile.TemporaryDirectory() as scratch:
        agents = {name: str(folder(name)) for name in names}
        recipe = {"base": str(folder("base")), "agents": agents, "method": method, "output": {"dtype": "float32"}}
        agentmerge.merge(recipe, Path(scratch) / "out")
        model = LanguageModel.load(Path(scratch) / "out", threads=1)
        return score(model, [task for task in TASKS if task.domain in names], "test", COUNT["test"])


if __name__ == "__main__":
    main()
