"""What merges do to skills that none of their agents was trained on, with and without `keep`.

python experiments/tiny_agents/keep.py --work DIR       # measures, merges, scores: results/keep.json
python experiments/tiny_agents/keep.py                  # its table into docs/grams.md

Every two and three of the four shipped agents are merged. The base is measured on dev prompts of the domains that no
agent of a set was trained on, or of all; scores are of test prompts of all four.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from harm import METHODS, PROMPTS, merged, prompt_lines, scores_of, work_folder
from harm_tables import put
from keep_tables import PAGE, tables

from agentmerge.demo.shipped import NAMES, folder
from agentmerge.importance.grams import GramOptions, measure_grams
from agentmerge.recipe import Recipe

RESULTS = Path(__file__).parent / "results" / "keep.json"
SETS = [names for count in (2, 3) for names in combinations(sorted(NAMES), count)]
KEEPS = (0.1, 0.3, 1.0)


def main() -> None:
    """Everything, or the table alone."""
    work = work_folder(__doc__)
    if work is not None:
        RESULTS.write_text(json.dumps(all_scores(work), indent=1) + "\n")
    put(PAGE, tables(json.loads(RESULTS.read_text())))


def all_scores(work: Path) -> dict[str, Any]:
    """Of the base and of every merge; a set that an earlier run finished is not merged again."""
    path = work / "scores.json"
    found = json.loads(path.read_text()) if path.exists() else {"base": scores_of(folder("base")), "merges": {}}
    for names in SETS:
        if "+".join(names) not in found["merges"]:
            found["merges"]["+".join(names)] = case(names, work)
            path.write_text(json.dumps(found))
    return dict(found)


def case(names: tuple[str, ...], work: Path) -> dict[str, dict[str, float]]:
    """The scores of every rule on one set, by its label."""
    plain = {
        "base": str(folder("base")),
        "agents": {name: str(folder(name)) for name in names},
        "output": {"rounding": "stochastic"},
    }
    recipes = {label: {**plain, "method": method} for label, method in METHODS.items()}
    untrained = tuple(name for name in sorted(NAMES) if name not in names)
    for told, skills in (("untrained", untrained), ("everything", tuple(sorted(NAMES)))):
        kept = {**plain, "keep": str(measured(skills, work))}
        for share in KEEPS:
            method = {"name": "wudi_auto", "keep": share}
            recipes[f"WUDI auto, keep {share:g} of {told}"] = {**kept, "method": method}
    found = {label: merged(Recipe.parse(recipe), {}, work) for label, recipe in recipes.items()}
    print(names, {label: round(sum(scores.values()) / len(scores), 3) for label, scores in found.items()}, flush=True)
    return found


def measured(skills: tuple[str, ...], work: Path) -> Path:
    """Gram matrices of the base on prompts of these skills, every prompt counting the same."""
    out = work / f"keep-{'-'.join(skills)}"
    if not out.exists():
        data = out.with_suffix(".jsonl")
        data.write_text("".join(line for line in prompt_lines() if json.loads(line)["skill"] in skills))
        options = GramOptions(device="cpu", examples=2 * PROMPTS * len(skills), per="example")
        measure_grams(folder("base"), data, out, options)
    return out


if __name__ == "__main__":
    main()
