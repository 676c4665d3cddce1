"""Base and agents of one seed: a process each, several at once on a GPU; what is done is skipped."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agents import AGENTS, PACES, TINY_COLD, order, paced, tiny
from journal import write_atomically

SLOTS = 6  # processes at once on one GPU: about 10 GiB each
TRIES = 2
LONGEST = 900  # seconds of an agent; a process that hangs must not hold the others up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="holds raw/ (package.py); gets seedS/")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=1, help="how many of the visible ones; 0: the processor")
    parser.add_argument("--slots", type=int, default=SLOTS, help="agents at once on one GPU")
    parser.add_argument("--only", help="agents by name, with commas; left out: all")
    parser.add_argument("--steps", type=int, help="of an agent, at most; for a first look at a machine")
    parser.add_argument("--tiny", action="store_true", help="two steps each, on the processor")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        train_all(given, given.child.split(","))
        return
    names = given.only.split(",") if given.only else list(AGENTS)
    unknown = sorted(set(names) - set(AGENTS))
    if unknown:
        raise SystemExit(f"no such agent: {', '.join(unknown)}; there are {', '.join(AGENTS)}")
    failed = Training(given).run(order(names))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; see the .out files in {given.work / f'seed{given.seed}/logs'}")


def train_all(given: argparse.Namespace, names: list[str]) -> None:
    """One after the other in this process; what fails is told and does not stop the rest."""
    import torch

    torch.set_num_threads(1)
    device, failed = "cpu" if given.tiny or given.gpus == 0 else "cuda", []
    for name in names:
        try:
            train_one(given, name, device)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def train_one(given: argparse.Namespace, name: str, device: str) -> None:
    from files import read_shape

    architecture = read_shape(given.work / "raw").family
    if name == "cold":
        from supervise import train_base

        settings = TINY_COLD if given.tiny else PACES[architecture].cold
        train_base(given.work, given.seed, device, settings, tiny=given.tiny)
    else:
        from reinforce import train_agent

        agent = tiny(AGENTS[name]) if given.tiny else paced(AGENTS[name], architecture)
        steps = min(agent.steps, given.steps or agent.steps)
        train_agent(given.work, given.seed, name, device, replace(agent, steps=steps))


@dataclass
class Running:
    """A process that trains."""

    name: str  # of an agent, or of several with commas
    slot: str  # the GPU, as CUDA_VISIBLE_DEVICES names it
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.time)


class Training:
    """All of a seed."""

    def __init__(self, given: argparse.Namespace):
        self._given, self._folder = given, given.work / f"seed{given.seed}"
        self._gpus = visible(given.gpus) if given.gpus and not given.tiny else [""]
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)

    def run(self, names: list[str]) -> list[str]:
        """The base, then the agents; those that failed."""
        if not (self._folder / "base").exists():
            self._together(["cold"], "cold", self._gpus[:1])
            if not (self._folder / "base").exists():
                return ["cold"]
        left = [name for name in names if not self._done(name)]
        for _ in range(TRIES):
            if left:
                self._together([",".join(left)] if self._given.tiny else left, "agents", self._gpus)
            left = [name for name in left if not self._done(name)]
        return left

    def _done(self, name: str) -> bool:
        return (self._folder / "agents" / name).exists()

    def _together(self, names: list[str], stage: str, gpus: list[str]) -> None:
        """Run these, as many at once as there are slots; note how long it took."""
        started, waiting = time.time(), list(names)
        free = [gpu for _ in range(self._given.slots) for gpu in gpus]
        running: list[Running] = []
        try:
            while waiting or running:
                while waiting and free:
                    running.append(self._start(waiting.pop(0), free.pop(0)))
                time.sleep(0.2)
                for one in running:
                    if time.time() - one.started > LONGEST:
                        one.process.kill()
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    free.insert(0, one.slot)
                    self._note(one)
        finally:
            for one in running:
                one.process.kill()
        wall = time.time() - started
        before = read_times(self._folder / "times.json").get(stage, {}).get("gpu_seconds", 0.0)
        spent = before + wall * len(gpus)  # second tries count
        self._write_time(stage, {"wall_seconds": wall, "gpus": len(gpus), "gpu_seconds": spent})
        print(f"seed {self._given.seed} {stage}: {wall:.0f} s on {len(gpus)} GPUs", flush=True)

    def _start(self, name: str, gpu: str) -> Running:
        given = self._given
        command = [sys.executable, str(Path(__file__).resolve()), "--work", str(given.work), "--seed", str(given.seed)]
        command += ["--gpus", str(given.gpus), "--child", name, *(["--tiny"] if given.tiny else [])]
        command += ["--steps", str(given.steps)] if given.steps else []
        with self._out(name).open("ab") as out:
            process = subprocess.Popen(command, env=environment(gpu), stdout=out, stderr=out)
        return Running(name, gpu, process)

    def _out(self, name: str) -> Path:
        return self._folder / "logs" / f"{name.split(',')[0]}.out"

    def _note(self, one: Running) -> None:
        seconds, code = time.time() - one.started, one.process.returncode
        print(f"seed {self._given.seed} {one.name}: {seconds:.0f} s{f', FAILED ({code})' if code else ''}", flush=True)
        if code:
            print(last_lines(self._out(one.name)), flush=True)
        self._write_time(f"agent {one.name}", {"wall_seconds": seconds, "failed": bool(code)})

    def _write_time(self, key: str, value: dict[str, Any]) -> None:
        path = self._folder / "times.json"
        write_atomically(path, read_times(path) | {key: value})


def read_times(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def visible(count: int) -> list[str]:
    """The first GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = named.split(",") if named else [str(i) for i in range(count)]
    if len(found) < count:
        raise SystemExit(f"--gpus {count}, but CUDA_VISIBLE_DEVICES names {len(found)}")
    return found[:count]


def environment(gpu: str) -> dict[str, str]:
    """One GPU, few threads: many of these run beside each other."""
    few = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    more = {"RAYON_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return {**os.environ, **few, **more, "CUDA_VISIBLE_DEVICES": gpu}


def last_lines(path: Path, count: int = 12) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


if __name__ == "__main__":
    main()
