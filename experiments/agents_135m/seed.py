"""All steps of one seed: base and agents; then, beside each other, the guard, measurements, merges and scores.

    python experiments/agents_135m/seed.py --work WORK --seed 6 --plan survey --gpus 2 --seconds 900

WORK/raw must be there (package.py). Every step goes on where it was stopped, so this does, too. What a step prints goes
to WORK/seedN/STEP.out. The guard or a measurement that fails is told, and the rest is merged and scored without it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from grams import CONFIRM
from sweep import words
from train import SLOTS, environment, visible

HERE = Path(__file__).parent
READING = ("survey", "methods", "confirm2")  # plans with rules that read what grams.py leaves


def main() -> None:
    parser = words(__doc__)
    parser.add_argument("--slots", type=int, default=SLOTS, help="agents that train at once on one GPU")
    given = parser.parse_args()
    if not (given.work / "raw" / "config.json").exists():
        raise SystemExit(f"{given.work / 'raw'}: not there; make it with package.py")
    Steps(given).run()


class Steps:
    """The processes."""

    def __init__(self, given: argparse.Namespace):
        self._given, self._started = given, time.time()
        self._logs = given.work / f"seed{given.seed}"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._gpus = visible(given.gpus) if given.gpus and not given.tiny else [""]
        self._tiny = ["--tiny"] if given.tiny else []

    def run(self) -> None:
        """One after the other; what needs no GPU, or not the same one, beside each other."""
        given, seed = self._given, ["--seed", str(self._given.seed)]
        count = ["--gpus", str(0 if given.tiny else given.gpus)]
        warm = None if given.tiny else self._start("warm", [], "")
        training = [*seed, *count, "--slots", str(given.slots), *self._tiny]
        self._wait(self._start("train", training, ",".join(self._gpus)), needed=True)
        device = ["--device", "cpu" if given.tiny or not given.gpus else "cuda"]
        only = ["--only", CONFIRM] if given.plan == "confirm2" else []
        beside = [self._start("guard", [*seed, *device], self._gpus[0])]
        if given.plan in READING:
            beside.append(self._start("grams", [*seed, *device, *only], self._gpus[-1]))
        if warm is not None:
            self._wait(warm)
        ends = time.time() + given.seconds
        sweep = [*seed, *count, "--plan", given.plan, "--results", str(given.results), *self._tiny]
        self._wait(self._sweep(sweep, ends), needed=True)
        late = any(process.poll() is None for _, process in beside)
        for step in beside:
            self._wait(step)
        if late:
            self._wait(self._sweep(sweep, ends), needed=True)  # what waited for a measurement that came last

    def _sweep(self, words: list[str], ends: float) -> tuple[str, subprocess.Popen[bytes]]:
        limit = [] if ends == float("inf") else ["--seconds", f"{max(0.0, ends - time.time()):.0f}"]
        return self._start("sweep", [*words, *limit], ",".join(self._gpus))

    def _start(self, step: str, words: list[str], gpus: str) -> tuple[str, subprocess.Popen[bytes]]:
        command = [sys.executable, str(HERE / f"{step}.py"), "--work", str(self._given.work), *words]
        with (self._logs / f"{step}.out").open("ab") as out:
            return step, subprocess.Popen(command, env=environment(gpus), stdout=out, stderr=out)

    def _wait(self, step: tuple[str, subprocess.Popen[bytes]], *, needed: bool = False) -> None:
        name, process = step
        code = process.wait()
        told = "" if code == 0 else f", FAILED ({code}): see {self._logs / f'{name}.out'}"
        print(f"{time.time() - self._started:.0f} s: {name} ended{told}", flush=True)
        if code and needed:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
