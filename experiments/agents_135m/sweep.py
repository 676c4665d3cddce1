"""Merge sets of agents by many rules, score them, and save what was found. A run that was stopped goes on.

    python experiments/agents_135m/sweep.py --work WORK --seed 1 --plan select --gpus 2 --seconds 360

Product merges run on the processors, those of whole matrices on the GPUs, in processes that stay alive; what is merged
waits in memory (or WORK) until a scorer takes and deletes it. What must not be lacking comes first. Whatever fails is
noted in the results, and the rest goes on; what reads measurements that are not there waits and is lacking at the end.
Results: results/seedN.json.
"""

from __future__ import annotations

import argparse
import heapq
import json
import shutil
import tempfile
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crew import workers_of
from jobs import Merging, Scoring
from merging import Kitchen
from plans import Merge, Plan, confirm_plan, lacking_of, select_plan, tiny_plan
from pool import Done, Worker, collect
from saved import RESULTS, Saved, architecture_of, name_of, results_name
from sets import domains_of_model
from study2 import confirm2_plan, methods_plan, survey_plan, tiny_confirm2, tiny_survey
from warm import keep_loops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAITING = 24  # merged checkpoints of 270 MB that may wait for a scorer
SCORERS = 2  # on one GPU
TRIES = 2
CHOOSING = {
    "select": (select_plan, tiny_plan),
    "survey": (survey_plan, tiny_survey),
    "methods": (methods_plan, tiny_survey),
}
"""Plans of seeds that choose, as they are and in small."""
REGISTERED = {"confirm": "registered.json", "confirm2": "registered2.json"}


def main() -> None:
    parser = words(__doc__)
    parser.add_argument("--scorers", type=int, default=SCORERS, help="processes that score on one GPU")
    given = parser.parse_args()
    if not given.tiny:
        keep_loops(given.work)
    folder = given.work / f"seed{given.seed}"
    name = name_of(architecture_of(folder), given.seed)

    def planned() -> Plan:
        return plan_of(given.plan, name, read_advice(folder), tiny=given.tiny)

    saved = Saved(given.results / results_name(folder, given.seed), folder, given.seed, planned().counts)
    with scratch_folder(given.work) as scratch:
        Sweep(given, planned, saved, scratch).run()


def words(about: str) -> argparse.ArgumentParser:
    """What seed.py takes, too.

    Args:
        about: the docstring whose first line describes the script.
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="what train.py is given: holds raw/ (package.py)")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--plan", choices=(*CHOOSING, *REGISTERED), required=True)
    parser.add_argument("--gpus", type=int, default=1, help="how many of the visible ones; 0: the processor")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no merge or score begins")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true", help="in small, on the processor")
    return parser


def plan_of(plan: str, name: str | int, advice: dict[str, Any], *, tiny: bool) -> Plan:
    """The plan of this name for a seed; raises SystemExit where the seed was not registered for it."""
    if plan in CHOOSING:
        return CHOOSING[plan][tiny](advice)
    file = REGISTERED[plan]
    registered = json.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
    if not tiny and name not in registered["confirmation_seeds"]:
        raise SystemExit(f"seed {name}: {file} has other seeds that confirm: {registered['confirmation_seeds']}")
    if plan == "confirm2":
        return tiny_confirm2(advice, registered) if tiny else confirm2_plan(advice, registered)
    return tiny_plan(advice) if tiny else confirm_plan(advice, registered)


def read_advice(folder: Path) -> dict[str, Any]:
    """What the guard says of each set: {"H3": {"weights": {...}, "rules": [...], "leave_out": [...]}}."""
    path = folder / "advice.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


@contextmanager
def scratch_folder(work: Path) -> Iterator[Path]:
    """For merged checkpoints: in memory where there is room, else in the working folder; deleted at the end."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > (WAITING + 16) * 600_000_000
    with tempfile.TemporaryDirectory(dir=memory if roomy else work, prefix="merged-", ignore_cleanup_errors=True) as at:
        yield Path(at)


class Sweep:
    """Gives jobs to processes, best first, until nothing is left or time is up.

    What guard.py and grams.py leave meanwhile is taken up; a merge that reads it waits till then.
    """

    def __init__(self, given: argparse.Namespace, planned: Callable[[], Plan], saved: Saved, scratch: Path):
        self._planned, self._saved, self._scratch = planned, saved, scratch
        self._plan = planned()
        self._folder = given.work / f"seed{given.seed}"
        self._kitchen, self._told_advice = Kitchen(self._folder, 1, "cpu"), read_advice(self._folder)
        self._about = {"plan": given.plan, "gpus": 0 if given.tiny else given.gpus}
        self._started = time.time()
        self._ends = self._started + given.seconds
        self._order, self._ready = count(), list[tuple[Any, int, Scoring]]()
        self._tries: dict[str, int] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._done, self._told = 0, 0.0
        self._mergers, self._scorers = workers_of(given, self._plan.counts)
        self._queue_models()

    def run(self) -> None:
        """All of it."""
        try:
            while time.time() < self._ends and self._give():
                self._look_for_advice()
                for done in collect(self._busy(), min(1.0, max(0.0, self._ends - time.time()))):
                    self._take(done)
                self._saved.write(every=5)
                self._tell()
        finally:
            for worker in (*self._mergers, *self._scorers):
                worker.stop()
            self._close()

    def _look_for_advice(self) -> None:
        """A plan made anew once the guard has spoken."""
        if not self._told_advice and (advice := read_advice(self._folder)):
            self._told_advice, self._plan = advice, self._planned()

    def _queue_models(self) -> None:
        """Base and agents, those first whose scores lack."""
        for place, name in enumerate(self._plan.models):
            splits = self._plan.model_splits if name == "base" else ("test",)
            domains = domains_of_model(name, all_of_them=self._plan.wide_agents)
            lacking = lacking_of(self._saved.data["models"].get(name, {}), splits, domains)
            path = self._folder / "base" if name == "base" else self._folder / "agents" / name
            if name not in self._saved.data["checkpoints"]:
                self._saved.fail(name, "there is no such checkpoint")
            elif lacking:
                tier = 0 if name == "base" else 1
                job = Scoring(name, path, lacking, tuple(domains))
                heapq.heappush(self._ready, ((tier, 10 * place), next(self._order), job))

    def _give(self) -> bool:
        """Work to whoever has none; whether anything is going on."""
        for scorer in self._scorers:
            if scorer.job is None and self._ready:
                scorer.give(heapq.heappop(self._ready)[2])
        wanted = self._wanted()
        for merge in wanted:
            if self._merged() + sum(w.job is not None for w in self._mergers) >= WAITING:
                break
            kind = self._kind(merge)
            free = next((w for w in self._mergers if w.job is None and w.kind == kind), None)
            if free:
                free.give(Merging(merge, self._scratch / str(next(self._order))))
        return bool(self._busy() or self._ready)

    def _merged(self) -> int:
        """How many wait for a scorer."""
        return sum(job.merge is not None for _, _, job in self._ready)

    def _kind(self, merge: Merge) -> str:
        """Who merges it: whole matrices on a GPU where there is one, and on the processors once that has failed."""
        kinds = {worker.kind for worker in self._mergers}
        return "gpu" if merge.rule.gpu and "gpu" in kinds and not self._tries.get(merge.key) else "cpu"

    def _wanted(self) -> list[Merge]:
        """Merges that lack a score and are neither on their way nor given up."""
        jobs = [worker.job for worker in self._busy()]
        going = {job.merge.key for job in jobs if job.merge} | {s.name for _, _, s in self._ready if s.merge}
        there = set(self._saved.data["checkpoints"])
        return [
            merge
            for merge in self._plan.wanted(self._saved.data["merges"], self._saved.means())
            if merge.key not in going
            and merge.key not in self._saved.data["failed"]
            and there.issuperset(merge.agents)
            and self._kitchen.measured(merge)
        ]

    def _busy(self) -> list[Worker]:
        return [worker for worker in (*self._mergers, *self._scorers) if worker.job is not None]

    def _take(self, done: Done) -> None:
        job = done.job
        if done.error is not None:
            if isinstance(job, Scoring):
                done.worker.restart()  # an error of a device stays with its process
            self._failed(job, done.error)
        elif isinstance(job, Merging):
            self._facts[job.merge.key] = done.value
            scoring = Scoring(job.merge.key, job.out, job.merge.splits, tuple(job.merge.domains), job.merge)
            heapq.heappush(self._ready, (job.merge.rank, next(self._order), scoring))
        else:
            self._done += 1
            kind = "merges" if job.merge else "models"
            about = {**described(job.merge), **self._facts.pop(job.name, {})} if job.merge else {}
            self._saved.add(kind, job.name, about, done.value)

    def _failed(self, job: Merging | Scoring, error: str) -> None:
        """Once more, then it is given up and noted."""
        name = job.merge.key if isinstance(job, Merging) else job.name
        self._tries[name] = self._tries.get(name, 0) + 1
        print(f"FAILED {name}: {error}", flush=True)
        if isinstance(job, Merging):
            shutil.rmtree(job.out, ignore_errors=True)
        elif job.merge:
            shutil.rmtree(job.folder, ignore_errors=True)
        elif self._tries[name] < TRIES:
            heapq.heappush(self._ready, ((0, 0), next(self._order), job))
        if self._tries[name] >= TRIES:
            self._saved.fail(name, error)

    def _tell(self) -> None:
        if time.time() - self._told > 10:
            self._told = time.time()
            merging = sum(w.job is not None for w in self._mergers)
            print(
                f"{time.time() - self._started:.0f} s: {self._done} scored, {len(self._ready)} wait, {merging} merge, "
                f"{len(self._saved.data['failed'])} failed",
                flush=True,
            )

    def _close(self) -> None:
        """What lacks, how long it took; and say so."""
        wall, gpus = time.time() - self._started, self._about["gpus"]
        lacking = [scoring.name for _, _, scoring in self._ready]
        for merge in self._plan.wanted(self._saved.data["merges"], self._saved.means()):
            lacking.append(merge.key)
            if not self._kitchen.measured(merge):
                self._saved.fail(merge.key, "what it reads was not measured, expected the output of grams.py")
        self._saved.data["lacking"] = list(dict.fromkeys(lacking))
        self._saved.data["versions"] = versions()
        seconds = {"wall_seconds": round(wall, 1), "gpu_seconds": round(wall * gpus, 1)}
        self._saved.data["runs"].append({**self._about, **seconds, "scored": self._done})
        self._saved.write()
        print(
            f"{wall:.0f} s: {self._done} scored, {len(self._saved.data['failed'])} failed, "
            f"{len(self._saved.data['lacking'])} lack",
            flush=True,
        )


def described(merge: Merge) -> dict[str, Any]:
    """What a reader of the results must know of a merge."""
    rule = merge.rule
    found = {"set": merge.set, "label": rule.label, "output": rule.output, "method": rule.method}
    beside = {"rules": rule.rules, "weights": rule.weights, "left_out": rule.left_out, "seed": rule.seed}
    beside |= {"keep": rule.keep, "reads": rule.reads}
    tuned = {"family": merge.family, "value": merge.value} if merge.family else {}
    return found | tuned | {name: value for name, value in beside.items() if value}


def versions() -> dict[str, str]:
    """Of what merged and scored."""
    from importlib.metadata import version

    import torch

    import agentmerge

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = {name: version(name) for name in ("torch", "numpy", "numba", "safetensors", "tokenizers")}
    return {"agentmerge": agentmerge.__version__, **found, "card": card}


if __name__ == "__main__":
    main()
