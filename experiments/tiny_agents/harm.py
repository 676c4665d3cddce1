"""Damage tiny agents, let `agentmerge harm` find it, follow its advice, and score what the merges make of it.

python experiments/tiny_agents/harm.py --work DIR       # trains, measures, merges, scores: results/harm.json
python experiments/tiny_agents/harm.py                  # its tables into docs/harm.md

The agents are the shipped ones, of which one at a time is trained again from the base, supervised at a rate that breaks
other skills. Prompts of the measurement are of dev, scores of test.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from files import read_model, save_checkpoint
from harm_places import compared
from harm_tables import written
from settings import SupervisedSettings
from supervise import train_supervised

from agentmerge import merge
from agentmerge.demo.shipped import NAMES, folder
from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.score import score
from agentmerge.eval.tiny.tasks import SUB_TASKS
from agentmerge.harm.options import HarmOptions
from agentmerge.harm.remedies import applied
from agentmerge.harm.run import measure_harm
from agentmerge.recipe import Recipe

RESULTS = Path(__file__).parent / "results" / "harm.json"
DAMAGED = {
    "code": SupervisedSettings("code", 1e-3, 60, 16),
    "math": SupervisedSettings("math", 1e-3, 80, 16),
    "tool": SupervisedSettings("tool", 2e-3, 60, 16),
}
"""Trained until other skills broke."""
METHODS: dict[str, dict[str, Any]] = {
    "mean": {"name": "task_arithmetic"},
    "TA 1.0": {"name": "task_arithmetic", "scale": 1.0},
    "TIES": {"name": "ties"},
    "RAM": {"name": "ram"},
    "RAM+ auto": {"name": "ram_plus_auto"},
    "WUDI auto": {"name": "wudi_auto"},
}
PROMPTS, COUNT = 32, 128
"""Of a sub-task: dev prompts of the measurement, test prompts of a score."""


def main() -> None:
    """Everything, or the tables alone."""
    work = work_folder(__doc__)
    if work is not None:
        prompts = work / "prompts.jsonl"
        prompts.write_text("".join(prompt_lines()))
        found = {"base": scores_of(folder("base")), "agents": {name: scores_of(folder(name)) for name in NAMES}}
        agents = {name: folder(name) for name in NAMES}
        found["healthy"] = case(agents, prompts, work)
        noisy = case({**agents, "tool": with_noise(work)}, prompts, work, {})
        found["noise"] = {"rows": noisy["rows"], "lengths": noisy["lengths"]}
        found["damaged"] = {name: damaged_case(name, prompts, work) for name in DAMAGED}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    written(json.loads(RESULTS.read_text()))


def work_folder(about: str) -> Path | None:
    """What --work names, made; none where the tables alone are wanted.

    Args:
        about: the docstring whose first line describes the script.
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--work", type=Path)
    work: Path | None = parser.parse_args().work
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    return work


def prompt_lines() -> list[str]:
    """Prompts of every domain, without answers: the base gives its own."""
    samples = [(task.domain, one) for task in SUB_TASKS for one in task.samples("dev", PROMPTS, seed=3)]
    return [json.dumps({"prompt": one.prompt, "skill": domain}) + "\n" for domain, one in samples]


def damaged_case(name: str, prompts: Path, work: Path) -> dict[str, Any]:
    """One agent damaged, the others as they are."""
    broken = work / f"{name}-damaged"
    if not broken.exists():
        train_supervised(folder("base"), broken, DAMAGED[name], seed=1)
    sources = {other: broken if other == name else folder(other) for other in NAMES}
    found = case(sources, prompts, work)
    harmed = [row["skill"] for row in found["rows"] if row["agent"] == name and row["harmed"]]
    places = compared(folder("base"), broken, prompts, harmed) if harmed else {}
    return {"damaged": name, "scores": scores_of(broken), **found, "places": places}


def with_noise(work: Path) -> Path:
    """The agent for tools with much noise in one layer's mlp: far from the base, and nothing else."""
    out = work / "tool-noise"
    if not out.exists():
        model, tokenizer = read_model(folder("tool"))
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "layers.1.mlp" in name:
                    parameter.add_(torch.randn_like(parameter) * parameter.std() / 2)
        save_checkpoint(model, tokenizer, out)
    return out


def case(
    sources: dict[str, Path], prompts: Path, work: Path, methods: dict[str, dict[str, Any]] = METHODS
) -> dict[str, Any]:
    """What is found in a set of agents, and the scores of its merges as they are and with the advice."""
    plain: dict[str, Any] = {"base": str(folder("base")), "agents": {name: str(path) for name, path in sources.items()}}
    record = measure_harm({**plain, "method": "ram"}, prompts, HarmOptions())
    merges = {}
    for label, method in methods.items():
        recipe = Recipe.parse({**plain, "method": method, "output": {"rounding": "stochastic"}})
        merges[label] = {way: merged(recipe, change, work) for way, change in ways(record).items()}
        print(label, {way: round(float(np.mean(list(found.values()))), 3) for way, found in merges[label].items()})
    rows, remedies = ([row.model_dump() for row in rows] for rows in (record.rows, record.remedies))
    found = {"rows": rows, "remedies": remedies, "change": record.change, "lengths": record.lengths}
    return {**found, "merges": merges}


def ways(record: Any) -> dict[str, dict[str, Any]]:
    """What is done about the harmful agents."""
    if not record.harmful:
        return {"as they are": {}}
    half = {"agents": {name: {"weight": 0.5} for name in record.harmful}}
    return {"as they are": {}, "advised": record.change, "half": half, "left out": {"leave_out": record.harmful}}


def merged(recipe: Recipe, change: dict[str, Any], work: Path) -> dict[str, float]:
    """The scores of one merge by domain."""
    out = work / "merged"
    merge(applied(recipe, change), out, overwrite=True)
    found = scores_of(out)
    shutil.rmtree(out)
    return found


def scores_of(checkpoint: Path) -> dict[str, float]:
    """Share of right answers by domain, the mean of its two sub-tasks."""
    found = score(LanguageModel.load(checkpoint, threads=1), SUB_TASKS, "test", COUNT)
    return {name: float(np.mean([found.share(task) for task in SUB_TASKS if task.domain == name])) for name in NAMES}


if __name__ == "__main__":
    main()
