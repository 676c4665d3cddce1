"""Measure what methods with data read: Gram matrices of the base and of the seven main agents, and their importance.

    python experiments/agents_135m/grams.py --work WORK --seed 1

The base is measured on its own answers to the guard's prompts: on all of them (grams/base), and on those of what no
agent of a set was trained on, every token counting the same (grams/base-SET) or every prompt (grams/even-SET). Each
main agent is measured on its own answers to the prompts of its own domain (grams/NAME, importance/NAME). What is there
is skipped; the time goes to times.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crew import quiet
from journal import write_atomically
from pool import Done, Worker, collect
from sets import HAVE_UNOWNED, KEEPING, untrained
from tasks import DOMAINS, SUB_TASKS
from train import read_times, visible

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS = 4  # processes at once on the GPU
LIMIT = 240.0  # seconds of a model
MOST = 100_000  # examples: all of a file


@dataclass(frozen=True)
class Job:
    """A model and the domains that it is measured on."""

    name: str  # of what comes of it
    domains: tuple[str, ...]
    agent: bool = False  # on its own answers, its importance too
    per: str = "token"  # what counts the same

    def folders(self, seed_folder: Path) -> list[Path]:
        """What comes of it."""
        return [seed_folder / kind / self.name for kind in ("grams", *(["importance"] if self.agent else []))]


JOBS = (
    Job("base", tuple(DOMAINS)),
    *(Job(name, (name,), agent=True) for name in DOMAINS),
    *(Job(f"base-{name}", tuple(untrained(name))) for name in HAVE_UNOWNED),
    *(Job(f"even-{name}", tuple(untrained(name)), per="example") for name in KEEPING),
)
CONFIRM = ",".join(["base", *(f"even-{name}" for name in KEEPING)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="what train.py was given")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cuda: the first visible GPU")
    parser.add_argument("--only", help=f"with commas; left out: all; a seed that confirms needs {CONFIRM}")
    parser.add_argument("--slots", type=int, default=SLOTS, help="processes at once on it")
    given = parser.parse_args()
    folder, started = given.work / f"seed{given.seed}", time.time()
    (folder / "data").mkdir(exist_ok=True)
    only = given.only.split(",") if given.only else [job.name for job in JOBS]
    if unknown := set(only) - {job.name for job in JOBS}:
        raise SystemExit(f"--only {','.join(sorted(unknown))}: there are {', '.join(job.name for job in JOBS)}")
    wanted = [job for job in JOBS if job.name in only and there(folder, job)]
    jobs = [job for job in wanted if not all(path.exists() for path in job.folders(folder))]
    failed = measure_all(given, jobs) if jobs else []
    if jobs:
        note_time(folder / "times.json", time.time() - started)
    print(f"{len(jobs) - len(failed)} measured, {len(failed)} failed, {time.time() - started:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def there(folder: Path, job: Job) -> bool:
    """Whether its model was trained."""
    return not job.agent or (folder / "agents" / job.name / "config.json").exists()


def measure_all(given: argparse.Namespace, jobs: list[Job]) -> list[str]:
    """Some at once; those that failed."""
    gpu = visible(1)[0] if given.device == "cuda" else ""
    count, waiting, failed = min(given.slots if gpu else 1, len(jobs)), list(jobs), list[str]()
    begin = (given.work, given.seed, given.device)
    workers = [Worker("grams", begin_measuring, begin, quiet(gpu), LIMIT) for _ in range(count)]
    try:
        while waiting or any(worker.job for worker in workers):
            for worker in workers:
                if waiting and worker.job is None:
                    worker.give(waiting.pop(0))
            failed += [done.job.name for done in collect(workers, 1.0) if told(done)]
    finally:
        for worker in workers:
            worker.stop()
    return failed


def told(done: Done) -> bool:
    """Say what came of it; whether it failed."""
    print(f"FAILED {done.job.name}: {done.error}" if done.error else f"{done.job.name}: {done.value:.1f} s", flush=True)
    return done.error is not None


def note_time(path: Path, wall: float) -> None:
    """Beside those of the training; several calls add up."""
    times = read_times(path)
    spent = times.get("grams", {}).get("gpu_seconds", 0.0) + wall
    write_atomically(path, times | {"grams": {"wall_seconds": spent, "gpus": 1, "gpu_seconds": spent}})


def begin_measuring(work: Path, seed: int, device: str) -> Callable[[Job], float]:
    """Ready to measure; a job returns its seconds."""
    import torch

    torch.set_num_threads(1 if device == "cuda" else 2)
    return lambda job: measure(work, seed, device, job)


def measure(work: Path, seed: int, device: str, job: Job) -> float:
    """By the product, into new folders."""
    from agentmerge.importance.grams import GramOptions, measure_grams
    from agentmerge.importance.prepare import Options
    from agentmerge.importance.run import measure as measure_importance

    started, folder = time.perf_counter(), work / f"seed{seed}"
    model = folder / "agents" / job.name if job.agent else folder / "base"
    found = own_answers(work, seed, device, job) if job.agent else answers_of_base(folder, job)
    data = folder / "data" / f"{job.name}.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in found if one["response"]), encoding="utf-8")
    for out in job.folders(folder):
        if out.exists():
            continue
        if out.parent.name == "grams":
            measure_grams(model, data, out, GramOptions.of(device=device, examples=MOST, stored="float32", per=job.per))
        else:
            measure_importance(model, data, out, Options.of(device=device, examples=MOST))
    return time.perf_counter() - started


def answers_of_base(folder: Path, job: Job) -> list[dict[str, Any]]:
    """Those of the guard's prompts that ask for its domains, with the base's answers."""
    return [record for record in prompts_of(folder) if record["task"].split("/")[0] in job.domains]


def prompts_of(folder: Path) -> list[dict[str, Any]]:
    """All that the cold start left."""
    return [json.loads(line) for line in (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]


def own_answers(work: Path, seed: int, device: str, job: Job) -> list[dict[str, str]]:
    """The same prompts, answered greedily by the agent itself."""
    from families import model_of
    from files import read_weights
    from scoring import Tokens
    from supervise import answered

    folder = work / f"seed{seed}"
    model = model_of(read_weights(folder / "agents" / job.name, device))
    count = len(prompts_of(folder)) // len(SUB_TASKS)
    return answered(model, Tokens(work / "raw"), seed, count, list(job.domains))


if __name__ == "__main__":
    main()
