"""Merge made-up agents of toy size by every rule once: compiles the product's loops ahead, and says what does not run.

    python experiments/agents_135m/warm.py --work WORK [--device cuda]

Worth running while the agents train: every process of the sweep would compile on its own otherwise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from merging import Kitchen
from plans import Merge
from rules import RULES, TUNED, remedies
from sets import DAMAGED, SETS

TOY = "H3"
BASES = ("base", f"base-{TOY}", f"even-{TOY}")  # what grams.py measures of the base for that set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of methods of whole matrices")
    given = parser.parse_args()
    keep_loops(given.work)
    started, folder = time.time(), given.work / "warm"
    make_agents(folder)
    kitchen, failed = Kitchen(folder, 2, given.device), 0
    rules = [*RULES.values(), *(family.rule(family.coarse[0]) for family in TUNED.values()), *remedies(DAMAGED)]
    outputs = [replace(RULES["RAM+ auto"], output=output) for output in ("nearest", "float32")]
    for rule in (*rules, *outputs):
        try:
            kitchen.make(Merge(TOY, rule, (), 0), folder / "out")
        except Exception as error:
            failed += 1
            print(f"FAILED {rule.label}: {type(error).__name__}: {error}", flush=True)
    shutil.rmtree(folder)
    print(f"{len(rules) + len(outputs)} rules in {time.time() - started:.0f} s, {failed} failed", flush=True)


def keep_loops(work: Path) -> None:
    """Where compiled loops are kept from one process to the next."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str((work / "loops").resolve()))


def make_agents(folder: Path) -> None:
    """A base and the agents of a set, a few hundred thousand elements each."""
    from agentmerge.synth.write import synthesise

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = synthesise("tiny", folder / "made", agents=len(SETS[TOY]))
    (folder / "agents").mkdir()
    made.base.rename(folder / "base")
    for source, name in zip(made.agents.values(), SETS[TOY], strict=True):
        source.rename(folder / "agents" / name)
    make_measured(folder)


def make_measured(folder: Path) -> None:
    """What grams.py would measure, drawn by chance: importance of the agents, Gram matrices of agents and base."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    draw = np.random.default_rng(0)
    with safe_open(next((folder / "base").glob("*.safetensors")), framework="np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    inputs = {name: draw.standard_normal((600, shape[1])) for name, shape in shapes.items() if "_proj.weight" in name}
    found = {
        "importance": {name: draw.random(shape, np.float32) for name, shape in shapes.items()},
        "grams": {name: (rows.T @ rows / len(rows)).astype(np.float32) for name, rows in inputs.items()},
    }
    for kind, names in {"importance": SETS[TOY], "grams": (*SETS[TOY], *BASES)}.items():
        for name in names:
            (folder / kind / name).mkdir(parents=True)
            save_file(found[kind], folder / kind / name / "model.safetensors")


if __name__ == "__main__":
    main()
