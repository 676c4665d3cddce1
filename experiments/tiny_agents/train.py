"""Train everything: for each seed a base, four agents by GRPO and one by supervision. A killed run goes on.

    python experiments/tiny_agents/train.py --out DIR [--seeds 1 2] [--jobs 2]

DIR/seed1/{base,code,math,memory,tool,supervised} are ordinary checkpoints; beside each lies NAME.json with its curve,
its time and its scores on dev and test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from settings import SEEDS, Settings

if TYPE_CHECKING:
    from agentmerge.eval.samples import Split

SAMPLES = 256
"""Per sub-task, on dev and on test."""


def main() -> None:
    """Run every stage that is not done yet, each as soon as its base is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2, help="processes; each takes one core")
    parser.add_argument("--only", nargs="+", help="stages, for example base tool")
    given = parser.parse_args()
    stages = given.only or ["base", *Settings().agents, "supervised"]
    started = time.time()
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_stage, given.out, seed, stages[0]): seed for seed in given.seeds}
        first: set[Future[str]] = set(running)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                seed = running.pop(future)
                print(future.result(), flush=True)
                if future in first:
                    running |= {pool.submit(run_stage, given.out, seed, name): seed for name in stages[1:]}
    print(f"everything took {(time.time() - started) / 60:.1f} minutes")


def run_stage(out: Path, seed: int, name: str) -> str:
    """Train and score one checkpoint, unless its NAME.json says that it is done; a line about it."""
    folder = out / f"seed{seed}"
    note = folder / f"{name}.json"
    if note.exists():
        return f"seed {seed} {name}: already done"
    import torch

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    started, cpu = time.time(), time.process_time()
    history = train_stage(folder, seed, name)
    found: dict[str, Any] = {"name": name, "seed": seed, "wall_seconds": time.time() - started}
    found |= {"cpu_seconds": time.process_time() - cpu, "history": history, "scores": scores_of(folder / name)}
    fresh = note.with_suffix(".new")
    fresh.write_text(json.dumps(found) + "\n")
    fresh.replace(note)
    test = {task: f"{value:.0%}" for task, value in found["scores"]["test"].items()}
    return f"seed {seed} {name}: {found['cpu_seconds']:.0f} s of CPU, {found['wall_seconds']:.0f} s; test {test}"


def train_stage(folder: Path, seed: int, name: str) -> list[dict[str, Any]]:
    """Train what the name says."""
    settings = Settings()
    if name == "base":
        from supervise import train_base

        return train_base(folder / "base", settings.base, seed)
    if name == "supervised":
        from supervise import train_supervised

        return train_supervised(folder / "base", folder / name, settings.supervised, seed)
    from reinforce import train_agent

    return train_agent(folder / "base", folder / name, name, settings.agents[name], seed)


def scores_of(folder: Path) -> dict[str, dict[str, float]]:
    """Share of right answers by split and sub-task."""
    from agentmerge.eval.generate import LanguageModel
    from agentmerge.eval.score import score
    from agentmerge.eval.tiny.tasks import SUB_TASKS

    model, found = LanguageModel.load(folder), {}
    splits: tuple[Split, ...] = ("dev", "test")
    for split in splits:
        result = score(model, SUB_TASKS, split, SAMPLES)
        found[split] = {str(task): result.share(task) for task in SUB_TASKS}
    return found


if __name__ == "__main__":
    main()
