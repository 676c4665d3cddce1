"""Time and memory of the methods of whole matrices, beside the floor of their arithmetic, in the same run.

    python benchmarks/matrices.py --work DIR [--shape qwen2.5-1.5b] [--agents 3] [--methods resmerge,iso_c,tsv_m]
                                  [--device auto|cpu|cuda] [--excluded GLOBS] [--repeat 1] [--json FILE]

The agents are synthetic (`agentmerge synth`). Every merge runs in a process of its own. The floor is what the same
operations take as plain products of float64 matrices on that device, plus reading the inputs once a pass, plus writing
and syncing the output once. Operations are those of an ideal program: a Gram matrix by half, 9 n^3 for the eigenvectors
of n x n, 2 per element and product with a vector; on a GPU Newton-Schulz takes more of them, which counts against it.
Peak memory stands beside what the plan said. On two cores the larger methods take hours at 1.5B: see `--list` first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from run import machine, read_all, write_once

from agentmerge.engine.estimate import cost_line, memory_bytes
from agentmerge.engine.preflight import planned
from agentmerge.files.save import save
from agentmerge.methods import lanczos, spectra
from agentmerge.methods.arrays import cuda, speed
from agentmerge.methods.layers import LINEAR, matches
from agentmerge.recipe import Recipe
from agentmerge.record import MergeRecord
from agentmerge.sources.opening import opened
from agentmerge.synth.write import synthesise

if TYPE_CHECKING:
    from agentmerge.engine.plan import Plan

METHODS: dict[str, dict[str, Any]] = {
    "resmerge": {"name": "resmerge"},
    "resmerge 0": {"name": "resmerge", "rank_topk": 0},
    "iso_c": {"name": "iso_c"},
    "iso_cts": {"name": "iso_cts"},
    "tsv_m": {"name": "tsv_m"},
    "svc": {"name": "svc", "then": {"name": "task_arithmetic", "scale": 0.3}},
    "wudi exact": {"name": "wudi", "solver": "exact"},
    "wudi_auto": {"name": "wudi_auto"},
    "wudi_auto keep": {"name": "wudi_auto", "keep": 0.1},
}
HEAD = (
    *("shape", "agents", "method", "TFLOP", "TFLOP/s", "products", "read", "write", "floor"),
    *("merge", "ratio", "peak GB", "told GB"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder with room for inputs and outputs")
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--methods", default="resmerge,iso_c,tsv_m", help=f"all, or of {', '.join(METHODS)}")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--excluded", help="globs of matrices that are averaged, such as *embed*,*lm_head*")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="tell what each would take, and stop")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.work / f"{options.shape}-{options.agents}"
    if not folder.exists():
        synthesise(options.shape, folder, agents=options.agents)
    print(machine(), flush=True)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    rows = []
    for method in METHODS if options.methods == "all" else options.methods.split(","):
        recipe = recipe_of(folder, settings(method, options.device, options.excluded))
        if options.list:
            with planned(Recipe.parse(recipe)) as plan:
                print(f"{method}: {cost_line(plan)}; {memory_bytes(plan) / 1e9:.1f} GB", flush=True)
            continue
        rows.append({"shape": options.shape, "agents": options.agents, "method": method})
        rows[-1] |= measure(folder, recipe, options.repeat)
        print(text(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def settings(method: str, device: str, excluded: str | None) -> dict[str, Any]:
    found = {**METHODS[method], "device": device}
    takes = excluded and found["name"] in ("resmerge", "iso_c", "iso_cts", "tsv_m")
    return {**found, "excluded": excluded} if takes else found


def recipe_of(folder: Path, method: dict[str, Any]) -> dict[str, Any]:
    names = sorted(path.parent.name for path in folder.glob("*/config.json") if path.parent.name != "base")
    agents = {name: str(folder / name) for name in names}
    run = {"allow_slow": True}
    keep = {"keep": str(kept(folder))} if "keep" in method else {}
    return {"base": str(folder / "base"), **keep, "agents": agents, "method": method, "run": run}


def kept(folder: Path) -> Path:
    """Gram matrices of made-up inputs of every linear layer, float32; layers of as many inputs have the same."""
    out = folder.with_name(f"{folder.name}-keep")
    if not out.exists():
        rng, found = np.random.default_rng(0), dict[str, np.ndarray]()
        with opened(None, str(folder / "base")) as base:
            layers = {name: spec.shape[-1] for name, spec in base.specs.items() if matches(name, LINEAR)}
        for size in set(layers.values()):
            inputs = rng.standard_normal((256, size)).astype(np.float32)
            gram = inputs.T @ inputs / len(inputs)
            found |= {name: gram for name, side in layers.items() if side == size}
        save(out, found)
    return out


def measure(folder: Path, recipe: dict[str, Any], repeat: int) -> dict[str, Any]:
    inputs = sorted([*folder.glob("*/*.safetensors"), *Path(recipe.get("keep", folder)).glob("*.safetensors")])
    output = sum(path.stat().st_size for path in folder.glob("base/*.safetensors"))
    with planned(Recipe.parse(recipe)) as plan:
        told = memory_bytes(plan)
        operations = {device: ideal(recipe, device) for device in devices_of(plan)}
    rates = {device: speed(device, "float64") for device in operations}
    products = sum(flop / rates[device] for device, flop in operations.items())
    merges, reads, writes, peaks, folds = [], [], [], [], 0
    for _ in range(repeat):
        read_all(inputs)
        reads.append(read_all(inputs))
        writes.append(write_once(folder / "floor.bin", output))
        seconds, peak, folds = merge_once(folder, recipe)
        merges.append(seconds)
        peaks.append(peak)
    read, write, merge = (statistics.median(values) for values in (reads, writes, merges))
    passes = folds + 1
    floor = passes * read + write + products * passes  # a fold that measures a merge computes all of it, too
    return {
        "flop": sum(operations.values()) * passes,
        "rate": max(rates.values()),
        "products": products * passes,
        "read": read,
        "write": write,
        "floor": floor,
        "seconds": merge,
        "ratio": merge / floor,
        "peak": max(peaks),
        "told": told,
    }


def devices_of(plan: Plan) -> set[str]:
    return {job.work.device for job in plan.merged if job.work.flop} or {"cuda" if cuda() else "cpu"}


def ideal(recipe: dict[str, Any], device: str) -> float:
    """Operations of the matrices that are computed on a device, as an ideal program has them."""
    before = spectra.EIGH, lanczos.READING
    spectra.EIGH, lanczos.READING = 9.0, 2.0
    try:
        with planned(Recipe.parse(recipe)) as plan:
            return sum(job.work.flop for job in plan.merged if job.work.device == device)
    finally:
        spectra.EIGH, lanczos.READING = before


def merge_once(folder: Path, recipe: dict[str, Any]) -> tuple[float, int, int]:
    """One merge in a process of its own: seconds, peak resident bytes, passes that only read."""
    out, path = folder.parent / f"{folder.name}-merged", folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    command = ["merge", str(path), "--out", str(out), "--quiet", "--overwrite"]
    before = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", "from agentmerge.cli import main; main()", *command])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - before
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the merge failed with {process.returncode}")
    record = MergeRecord.load(out)
    written = sum(p.stat().st_size for p in out.glob("*.safetensors"))
    if written != record.output.bytes:
        raise SystemExit(f"{out}: {written} bytes are written, the record says {record.output.bytes}")
    return seconds, usage.ru_maxrss * (1 if platform.system() == "Darwin" else 1024), record.timing.folds


def text(row: dict[str, Any]) -> str:
    seconds = " | ".join(f"{row[name]:.2f}" for name in ("products", "read", "write", "floor", "seconds", "ratio"))
    return (
        f"| {row['shape']} | {row['agents']} | {row['method']} | {row['flop'] / 1e12:.3g} | {row['rate'] / 1e12:.3g} "
        f"| {seconds} | {row['peak'] / 1e9:.2f} | {row['told'] / 1e9:.2f} |"
    )


if __name__ == "__main__":
    main()
