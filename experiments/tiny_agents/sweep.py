"""Make and score every merge of the report, on agents that train.py left in DIR. A killed run goes on.

    python experiments/tiny_agents/sweep.py --agents DIR --seed 1 [--jobs 2] [--results FOLDER]

Results go to results/seedN.json: per merge the right answers of every sub-task on dev and test, as bits, and how much
of each agent's change was kept. The same samples for every model.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from merges import ALL, TUNED, Merge, every_merge
from safetensors.torch import load_file

import agentmerge
from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.score import score
from agentmerge.eval.tiny.tasks import SUB_TASKS

if TYPE_CHECKING:
    from agentmerge.eval.samples import Split

RESULTS = Path(__file__).parent / "results"
MODELS = ("base", *ALL, "supervised")
COUNT: dict[Split, int] = {"dev": 128, "test": 256}


def main() -> None:
    """Score base and agents, then every merge that has no result yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes; each takes one core")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    folder, path = given.agents / f"seed{given.seed}", given.results / f"seed{given.seed}.json"
    found = known(path, sums_of(folder))
    found |= {"seed": given.seed, "count": COUNT, "training": notes_of(folder), "survey": survey_of(folder)}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context, initializer=prepare, initargs=(folder,)) as pool:
        models = {pool.submit(scored, name): ("models", name) for name in MODELS if name not in found["models"]}
        wanted = [merge for merge in every_merge() if found["merges"].get(merge.key, {}).get("method") != merge.method]
        merges = {pool.submit(made, merge): ("merges", merge.key) for merge in wanted}
        for number, future in enumerate(as_completed(models | merges), 1):
            kind, name = (models | merges)[future]
            found[kind][name] = future.result()
            write(path, found)
            print(f"{number}/{len(models | merges)} {name}", flush=True)
    found["merges"] = {merge.key: found["merges"][merge.key] for merge in every_merge()}
    write(path, found)


def known(path: Path, sums: dict[str, str]) -> dict[str, Any]:
    """What an earlier run found for the same checkpoints; nothing for others."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return found if found.get("checkpoints") == sums else {"checkpoints": sums, "models": {}, "merges": {}}


def sums_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every checkpoint's weights."""
    return {name: sha256((folder / name / "model.safetensors").read_bytes()).hexdigest() for name in MODELS}


@dataclass
class Worker:
    """What a process holds: where the checkpoints are, and one model in memory whose weights are replaced."""

    folder: Path
    model: LanguageModel


WORKER: list[Worker] = []


def prepare(folder: Path) -> None:
    """Begin a process."""
    torch.set_num_threads(1)
    WORKER.append(Worker(folder, LanguageModel.load(folder / "base")))


def scored(name: str) -> dict[str, dict[str, str]]:
    """The scores of a trained checkpoint."""
    return bits(WORKER[0].folder / name, ALL)


def bits(
    folder: Path, domains: tuple[str, ...], splits: tuple[Split, ...] = ("dev", "test")
) -> dict[str, dict[str, str]]:
    """Right answers by split and sub-task, eight to a byte, in hex."""
    model = WORKER[0].model
    found = model.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not found.unexpected_keys, found  # or a weight of the merge before this one would stay
    assert set(found.missing_keys) <= {"lm_head.weight"}, found
    tasks, right = [task for task in SUB_TASKS if task.domain in domains], {}
    for split in splits:
        result = score(model, tasks, split, COUNT[split])
        right[split] = {str(task): np.packbits(result.right[task]).tobytes().hex() for task in tasks}
    return right


def made(merge: Merge) -> dict[str, Any]:
    """Merge, score, and measure what was kept."""
    folder = WORKER[0].folder
    agents = {name: source(folder, name, "fisher" in merge.family.lower()) for name in merge.agents}
    output = {"dtype": "float32"} if merge.output == "float32" else {"dtype": "base", "rounding": merge.output}
    recipe = {"base": str(folder / "base"), "agents": agents, "method": merge.method, "output": output}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "merged"
        record = agentmerge.merge(recipe, out)
        found = bits(out, merge.agents, ("dev", "test") if merge.family in TUNED else ("test",))
        kept = retention(folder, out, merge.agents)
    about = {
        "family": merge.family,
        "label": merge.label,
        "method": merge.method,
        "agents": merge.agents,
        "output": merge.output,
    }
    survived = {name: agent.rescale_survived for name, agent in record.rounding.items()}
    scales = {name: agent.scale for name, agent in record.survey.agents.items()}
    return {**about, **found, "retention": kept, "rescale_survived": survived, "scales": scales}


def source(folder: Path, name: str, importance: bool) -> dict[str, str]:
    """An agent of a recipe."""
    found = {"source": str(folder / name)}
    return {**found, "importance": str(folder / f"{name}.importance")} if importance else found


def retention(folder: Path, merged: Path, agents: tuple[str, ...]) -> dict[str, float]:
    """<merged - base, tau> / <tau, tau> of each agent, of what was stored."""
    base, update = flat(folder / "base"), flat(merged)
    update = update - base
    taus = {name: flat(folder / name) - base for name in agents}
    return {name: round(float(update @ tau / (tau @ tau)), 4) for name, tau in taus.items()}


def flat(folder: Path) -> np.ndarray:
    """Every weight, float64, in the order of the names."""
    tensors = load_file(folder / "model.safetensors")
    return np.concatenate([tensors[name].double().numpy().ravel() for name in sorted(tensors)])


def survey_of(folder: Path) -> dict[str, Any]:
    """What agentmerge.probe sees in the four agents, in the paper's three, and in the supervised one."""
    sets = {"all": ALL, "trio": ("code", "memory", "tool"), "supervised": ("supervised",)}
    found = {}
    for label, names in sets.items():
        agents = {name: str(folder / name) for name in names}
        record = agentmerge.probe({"base": str(folder / "base"), "agents": agents, "method": "ram_plus"})
        found[label] = record.survey.model_dump(mode="json")
    return found


def notes_of(folder: Path) -> dict[str, Any]:
    """What train.py noted of every stage."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def write(path: Path, found: dict[str, Any]) -> None:
    """Save, so that a killed run keeps what it has."""
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    fresh.replace(path)


if __name__ == "__main__":
    main()
