"""The modules of an experiment, and results of its seeds made up, for its tests."""

from __future__ import annotations

import base64
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "experiments" / "agents_135m"
COUNT = {"dev": 64, "test": 64}


@pytest.fixture(scope="module")
def experiment() -> Iterator[Any]:
    """Its modules, which are scripts beside each other."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def scored(experiment: Any) -> dict[int, dict[str, Any]]:
    """Results of three seeds as a sweep would save them, with answers drawn by chance."""
    found = {}
    plans, registered = experiment("plans"), experiment("hypotheses").read_registered()
    for seed in (1, 2, 3):
        advice = {name: {"weights": {"damaged": 0.5}} for name in experiment("sets").HARM}
        plan = plans.select_plan(advice) if seed == 1 else plans.confirm_plan(advice, registered)
        found[seed] = made_up(experiment, plan, seed)
    return found


def made_up(experiment: Any, plan: Any, seed: int) -> dict[str, Any]:
    """Everything that a plan wants, the recommended rule better than the others, the base worse."""
    sets, rng = experiment("sets"), np.random.default_rng(seed)
    levels = {"base": 0.3, "wudi_auto": 0.8, "mean": 0.4, "wudi_auto, keep": 0.95}

    def bits(label: str, domains: list[str], split: str) -> dict[str, str]:
        level = levels.get(label, levels.get(label.split(",")[0], 0.6))
        tasks = [f"{domain}/{how}" for domain in domains for how in ("easy", "hard")]
        draw = {task: np.packbits(rng.random(COUNT[split]) < level) for task in tasks}
        return {task: base64.b64encode(one.tobytes()).decode() for task, one in draw.items()}

    models = {
        name: {s: bits(name, sets.domains_of_model(name, all_of_them=True), s) for s in COUNT}
        | {"change": {"density": 0.2, "norm": 1.0}}
        for name in plan.models
    }
    merges: dict[str, dict[str, Any]] = {}
    means: dict[str, float] = {}
    while wanted := list(plan.wanted(merges, means)):
        for merge in wanted:
            own = {s: bits(merge.rule.label, merge.domains, s) for s in merge.splits}
            told = {name: {"rescale_survived": 0.5} for name in merge.agents}
            about = {"label": merge.rule.label, "set": merge.set, "output": merge.rule.output, "told": told}
            beside = {"retention": {"tool": 1.0}, "merge_seconds": 1.0, "merged_on": "cpu"}
            merges[merge.key] = {**merges.get(merge.key, {}), **about, **beside, **own}
            if "dev" in own:
                means[merge.key] = experiment("saved").own_mean(merges[merge.key], "dev", COUNT)
    run = {"plan": "select", "wall_seconds": 1.0, "gpu_seconds": 2.0, "scored": len(merges)}
    measured = {"skill": "sort", "own": False, "error": 0.2, "kept_answers": 0.5}
    harm = {
        "skills": [{"skill": "sort", "prompts": 64}],
        "rows": [
            {"agent": "damaged", "drop": 1.5, "harmed": True, **measured},
            {"agent": "tool", "drop": 0.7, "harmed": False, **measured},
            {"agent": "code", "drop": 0.1, "harmed": False, **measured},
        ],
    }
    times = {step: {"wall_seconds": 1.0, "gpu_seconds": 2.0} for step in ("cold", "agents", "grams")}
    beside = {"runs": [run], "training": {"harm": harm, "times": times}, "failed": {}, "lacking": []}
    return {"seed": seed, "count": COUNT, "models": models, "merges": merges, **beside}


@pytest.fixture(scope="module")
def second(experiment: Any) -> list[Any]:
    """Results of the second study's seeds that confirm, made up as the first one's."""
    hypotheses, study2 = experiment("hypotheses"), experiment("study2")
    registered = hypotheses.read_registered(hypotheses.REGISTERED2)
    advice = {name: {"weights": {"damaged": 0.5}} for name in experiment("sets").HARM}
    plan, found = study2.confirm2_plan(advice, registered), []
    for name in registered["confirmation_seeds"]:
        architecture, number = name.split() if isinstance(name, str) else ("llama", name)
        found.append({**made_up(experiment, plan, int(number)), "architecture": architecture})
    return [experiment("results").Seed(data) for data in found]


@pytest.fixture(scope="module")
def survey(experiment: Any) -> Any:
    """The second study's seed that surveys, made up as the others."""
    advice = {name: {"weights": {"damaged": 0.5}} for name in experiment("sets").HARM}
    return experiment("results").Seed(made_up(experiment, experiment("study2").survey_plan(advice), 4))


@pytest.fixture(scope="module")
def every_method(experiment: Any) -> Any:
    """The seed that scores every method after both studies, made up as the others."""
    advice = {name: {"weights": {"damaged": 0.5}} for name in experiment("sets").HARM}
    return experiment("results").Seed(made_up(experiment, experiment("study2").methods_plan(advice), 6))
