"""The same merge by mergekit (from the package registry, in an environment of its own) and by agentmerge, in one run.

    python benchmarks/peers.py --work DIR [--shape qwen2.5-0.5b] [--dtype float32] [--repeat 3] [--python PEER_PYTHON]

Both merge a base and three agents by RAM+ tensor by tensor (mergekit's `ramplus_tl`, r 0.1, alpha 2.0; ours with scope
tensor) into bfloat16. With --dtype float32 mergekit computes as we do: the outputs are compared element by element and
must agree before any time counts. With bfloat16 it needs less memory but rounds every step, so the share of elements
that differ is told only. The two take turns. Without --python an environment with mergekit is made in DIR (it installs
torch).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml
from run import machine, read_all
from safetensors import safe_open

from agentmerge.synth.write import synthesise

SETTINGS = {"r": 0.1, "alpha": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--python", type=Path, help="of an environment that has mergekit")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.work / f"{options.shape}-3"
    if not folder.exists():
        synthesise(options.shape, folder)
    peer = options.python or environment(options.work / "mergekit")
    version = subprocess.run(
        [peer, "-c", "from importlib.metadata import version as v; print(v('mergekit'), v('torch'))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    print(f"{machine()}; mergekit {version[0]}, torch {version[1]}")
    runs: dict[str, list[tuple[float, int]]] = {"agentmerge": [], "mergekit": []}
    for i in range(options.repeat):
        for name, once in {"agentmerge": ours, "mergekit": lambda f, o: theirs(peer, f, o, options.dtype)}.items():
            read_all(sorted(folder.glob("*/*.safetensors")))
            runs[name].append(once(folder, folder / f"out-{name}"))
        if i == 0:
            compare_apart(folder / "out-agentmerge", folder / "out-mergekit", options.dtype)
        for name in runs:
            shutil.rmtree(folder / f"out-{name}")
    report = {name: summary(found) for name, found in runs.items()}
    for name, row in report.items():
        print(f"{name}: {row['seconds']:.1f} s ({row['low']:.1f} to {row['high']:.1f}), peak {row['peak_mb']:.0f} MB")
    speed = report["mergekit"]["seconds"] / report["agentmerge"]["seconds"]
    memory = report["mergekit"]["peak_mb"] / report["agentmerge"]["peak_mb"]
    print(f"agentmerge is {speed:.1f} x faster with 1/{memory:.0f} of the memory")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "shape": options.shape, **report}, indent=1) + "\n")


def environment(folder: Path) -> Path:
    """A virtual environment with mergekit: its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for packages in (["-U", "pip"], ["torch==2.13.0"], ["mergekit"]):
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


def ours(folder: Path, out: Path) -> tuple[float, int]:
    agents = [word for name in ("code", "tool", "memory") for word in ("--agent", f"{name}={folder / name}")]
    settings = [f"rescale={SETTINGS['r']}", f"clip={SETTINGS['alpha']}", "scope=tensor"]
    words = ["merge", "--base", str(folder / "base"), *agents, "--method", "ram_plus", "--out", str(out), "--quiet"]
    for setting in settings:
        words += ["--set", setting]
    return timed([sys.executable, "-c", "from agentmerge.cli import main; main()", *words])


def theirs(python: Path, folder: Path, out: Path, dtype: str) -> tuple[float, int]:
    config = {
        "merge_method": "ramplus_tl",
        "base_model": str(folder / "base"),
        "models": [{"model": str(folder / name)} for name in ("code", "tool", "memory")],
        "parameters": SETTINGS,
        "dtype": dtype,
        "out_dtype": "bfloat16",
    }
    path = folder / "mergekit.yml"
    path.write_text(yaml.safe_dump(config))
    command = [python, "-m", "mergekit.scripts.run_yaml", path, out, "--no-copy-tokenizer", "--no-write-model-card"]
    return timed([str(word) for word in command])


def timed(command: list[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process."""
    before = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{command[0]} failed: {errors.decode()[-2000:]}")
    return time.perf_counter() - before, usage.ru_maxrss * 1024


def compare_apart(left: Path, right: Path, dtype: str) -> None:
    """Compare in a process of its own: a child's peak memory counts what its parent held when it began."""
    process = multiprocessing.get_context("spawn").Process(target=compare, args=(left, right, dtype))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("the outputs do not agree")


def compare(left: Path, right: Path, dtype: str) -> None:
    """Every element of both outputs; stop unless they agree but for single steps of bfloat16."""
    elements = different = 0
    worst = 0
    tensors = {name: path for path in right.glob("*.safetensors") for name in safe_open(path, "np").keys()}  # noqa: SIM118
    for path in left.glob("*.safetensors"):
        with safe_open(path, "np") as mine:
            for name in mine.keys():  # noqa: SIM118
                with safe_open(tensors[name], "np") as other:
                    a, b = (t.get_tensor(name).view(np.uint16).astype(np.int32) for t in (mine, other))
                steps = np.abs(np.where(a & 0x8000, -(a & 0x7FFF), a) - np.where(b & 0x8000, -(b & 0x7FFF), b))
                elements, different = elements + a.size, different + int((steps > 0).sum())
                worst = max(worst, int(steps.max(initial=0)))
    print(f"compared {elements:,} elements: {different:,} differ, by at most {worst} steps of bfloat16")
    if dtype == "float32" and (worst > 1 or different > elements / 1000):
        sys.exit(1)


def summary(found: list[tuple[float, int]]) -> dict[str, float]:
    seconds = [second for second, _ in found]
    return {
        "seconds": statistics.median(seconds),
        "low": min(seconds),
        "high": max(seconds),
        "peak_mb": max(peak for _, peak in found) / 1e6,
    }


if __name__ == "__main__":
    main()
