"""How many models and prompts every plan scores, were the best of a grid in the middle of its coarse values.

python experiments/agents_135m/planned.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plans import Plan, confirm_plan, select_plan
from rules import TUNED
from sets import HARM, domains_of_model
from study2 import confirm2_plan, methods_plan, survey_plan
from tasks import LEVELS

if TYPE_CHECKING:
    from plans import Merge

HERE = Path(__file__).parent
ADVICE = {name: {"weights": {"damaged": 0.5}} for name in HARM}


@dataclass
class Size:
    """Of a plan."""

    models: int = 0
    prompts: int = 0
    by_tier: dict[int, int] = field(default_factory=dict)
    """Prompts."""
    merges: dict[str, int] = field(default_factory=dict)
    """By whether they are of whole matrices."""


def main() -> None:
    for name, plan in plans().items():
        size = size_of(plan)
        merges = ", ".join(f"{count} merged on {where}" for where, count in sorted(size.merges.items()))
        print(f"{name}: {size.models} models ({merges}), {size.prompts:,} prompts; by tier", end=" ")
        print(", ".join(f"{tier}: {count:,}" for tier, count in sorted(size.by_tier.items())))


def plans() -> dict[str, Plan]:
    """By name."""
    first, second = (json.loads((HERE / f"registered{end}.json").read_text()) for end in ("", "2"))
    return {
        "select": select_plan(ADVICE),
        "confirm": confirm_plan(ADVICE, first),
        "survey": survey_plan(ADVICE),
        "methods": methods_plan(ADVICE),
        "confirm2": confirm2_plan(ADVICE, second),
    }


def size_of(plan: Plan) -> Size:
    """Go through it as a sweep does."""
    size, merges, means = Size(), dict[str, Any](), dict[str, float]()
    for name in plan.models:
        splits = plan.model_splits if name == "base" else ("test",)
        domains = domains_of_model(name, all_of_them=plan.wide_agents)
        _add(size, 0, sum(plan.counts[split] for split in splits) * len(domains) * len(LEVELS))
    while wanted := list(plan.wanted(merges, means)):
        for merge in wanted:
            scored = {f"{domain}/{level}": "" for domain in merge.domains for level in LEVELS}
            merges.setdefault(merge.key, {}).update(dict.fromkeys(merge.splits, scored))
            _add(size, merge.tier, sum(plan.counts[split] for split in merge.splits) * len(scored))
            where = "a GPU" if merge.rule.gpu else "processors"
            size.merges[where] = size.merges.get(where, 0) + 1
            if "dev" in merge.splits:
                means[merge.key] = made_up(merge)
    return size


def made_up(merge: Merge) -> float:
    """A score on dev that falls with the distance from the middle of the coarse grid."""
    if merge.family is None or merge.value is None:
        return 0.0
    coarse = TUNED[merge.family].coarse
    return -abs(merge.value - coarse[len(coarse) // 2])


def _add(size: Size, tier: int, prompts: int) -> None:
    size.models += 1
    size.prompts += prompts
    size.by_tier[tier] = size.by_tier.get(tier, 0) + prompts


if __name__ == "__main__":
    main()
