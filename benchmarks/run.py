"""Time and memory of real merges, beside the floor of reading and writing the same bytes in the same run.

    python benchmarks/run.py --work DIR [--shapes qwen2.5-0.5b,qwen2.5-1.5b] [--agents 3] [--methods ram,ram_plus]
                             [--repeat 5] [--cold] [--json FILE]

Every merge runs in a process of its own and is checked before its time counts. The floor of a method that reads the
inputs k times is k x (time to read all inputs once, with as many threads) + (time to write and fsync the output once),
measured beside it, alternated. Warm: the inputs were just read. Cold: the page cache is dropped first (needs root).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agentmerge.files.layout import plan_layout
from agentmerge.files.positional import aligned_empty, preallocate, read_into, sync_data, write_from
from agentmerge.record import MergeRecord
from agentmerge.sources.opening import opened
from agentmerge.synth.write import synthesise
from agentmerge.tensors import TensorSpec

STEP = 4 << 20  # bytes

METHODS: dict[str, dict[str, Any]] = {
    "ram": {"name": "ram"},
    "ram_plus": {"name": "ram_plus"},
    "task_arithmetic": {"name": "task_arithmetic"},
    "fisher": {"name": "fisher"},
    "ties": {"name": "ties"},
    "dare+ta": {"name": "dare", "then": "task_arithmetic"},
    "dare+ties": {"name": "dare", "then": "ties"},
    "wudi": {"name": "wudi"},
    "wudi exact": {"name": "wudi", "solver": "exact"},
    "ram_plus auto": {"name": "ram_plus", "rescale": "auto"},
    "calibrate(ram)": {"name": "calibrate", "then": "ram"},
}
"""What can be named: the paper's figure 9, and two of ours."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder with room for inputs and outputs")
    parser.add_argument("--shapes", default="qwen2.5-0.5b,qwen2.5-1.5b")
    parser.add_argument("--agents", default="3", help="numbers of agents, comma-separated")
    parser.add_argument("--methods", default="ram,ram_plus", help=f"all, or of {', '.join(METHODS)}")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the synthetic sets")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(machine())
    rows = []
    for shape in options.shapes.split(","):
        for agents in map(int, options.agents.split(",")):
            folder = options.work / f"{shape}-{agents}"
            if not folder.exists():
                synthesise(shape, folder, agents=agents)
            for method in METHODS if options.methods == "all" else options.methods.split(","):
                rows.append(measure(folder, shape, method, options.repeat, options.cold))
                print(row_text(rows[-1]), flush=True)
            if not options.keep:
                shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def measure(folder: Path, shape: str, method: str, repeat: int, cold: bool) -> dict[str, object]:
    out = folder / "merged-for-benchmark"
    if method == "fisher":
        for name in (path.parent.name for path in folder.glob("*/config.json") if path.parent.name != "base"):
            importance(folder, name)
    inputs = sorted(
        p for p in folder.glob("*/*.safetensors") if method == "fisher" or "importance" not in p.parent.name
    )
    size, output = (
        sum(path.stat().st_size for path in inputs),
        sum(p.stat().st_size for p in folder.glob("base/*.safe*")),
    )
    ours, reads, writes, peaks = [], [], [], []
    passes = None
    for _ in range(repeat):
        drop_cache() if cold else read_all(inputs)
        reads.append(read_all(inputs))
        writes.append(write_once(folder / "floor.bin", output))
        if cold:
            drop_cache()
        seconds, peak, record = merge_once(folder, out, method)
        passes = record.timing.folds + 1
        ours.append(seconds)
        peaks.append(peak)
    floors = [passes * read + write for read, write in zip(reads, writes, strict=True)]
    return {
        "shape": shape,
        "agents": len(list(folder.glob("*/config.json"))) - 1,
        "method": method,
        "cold": cold,
        "input_gb": size / 1e9,
        "output_gb": output / 1e9,
        "passes": passes,
        "seconds": spread(ours),
        "read_once": spread(reads),
        "write_once": spread(writes),
        "floor": spread(floors),
        "ratio": statistics.median(ours) / statistics.median(floors),
        "seconds_per_gb": statistics.median(ours) / ((passes * size + output) / 1e9),
        "peak_mb": max(peaks) / 1e6,
    }


def merge_once(folder: Path, out: Path, method: str) -> tuple[float, int, MergeRecord]:
    """One merge in a process of its own: seconds, peak resident bytes, record."""
    names = sorted(path.parent.name for path in folder.glob("*/config.json") if path.parent.name != "base")
    agents: dict[str, dict[str, str]] = {name: {"source": str(folder / name)} for name in names}
    if method == "fisher":
        for name in names:
            agents[name]["importance"] = str(importance(folder, name))
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"base": str(folder / "base"), "agents": agents, "method": METHODS[method]}))
    command = ["merge", str(recipe), "--out", str(out), "--quiet"]
    before = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", "from agentmerge.cli import main; main()", *command])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - before
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the merge failed with {process.returncode}")
    record = MergeRecord.load(out)
    counted = sum(record.survey.agents[names[0]].changed_by_exactly)
    assert counted == record.survey.agents[names[0]].changed > 0
    assert sum(p.stat().st_size for p in out.glob("*.safetensors")) == record.output.bytes
    shutil.rmtree(out)
    return seconds, usage.ru_maxrss * (1 if platform.system() == "Darwin" else 1024), record


def importance(folder: Path, name: str) -> Path:
    """Made-up float32 importance of an agent, as large as a real one; made once."""
    out = folder / f"importance-{name}"
    if out.exists():
        return out
    out.mkdir()
    with opened(None, str(folder / name)) as agent:
        specs = [TensorSpec(spec.name, "F32", spec.shape) for spec in agent.specs.values()]
    layout = plan_layout(specs, 1 << 62)
    draws = np.random.default_rng(0).standard_exponential(STEP // 4, np.float32)
    with (out / layout.shards[0].name).open("wb") as file:
        file.write(layout.shards[0].header)
        for spec in specs:
            for start in range(0, spec.elements, draws.size):
                file.write(draws[: min(draws.size, spec.elements - start)].tobytes())
    return out


def read_all(paths: list[Path]) -> float:
    """Seconds to read every byte once with a thread per core."""
    jobs = iter([(path, at) for path in paths for at in range(0, path.stat().st_size, STEP)])
    fds = {path: os.open(path, os.O_RDONLY) for path in paths}
    sizes = {path: path.stat().st_size for path in paths}
    lock = threading.Lock()

    def loop() -> None:
        buffer = aligned_empty(STEP)
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                return
            path, at = job
            read_into(fds[path], buffer[: min(STEP, sizes[path] - at)], at)

    before = time.perf_counter()
    threads = [threading.Thread(target=loop) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - before
    for fd in fds.values():
        os.close(fd)
    return seconds


def write_once(path: Path, size: int) -> float:
    """Seconds to write `size` bytes and have them on the disk."""
    buffer = aligned_empty(STEP)
    buffer[:] = 7
    before = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    preallocate(fd, size)
    for at in range(0, size, STEP):
        write_from(fd, buffer[: min(STEP, size - at)], at)
    sync_data(fd)
    os.close(fd)
    seconds = time.perf_counter() - before
    path.unlink()
    return seconds


def drop_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def machine() -> str:
    memory = resource.getpagesize() * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    versions = ", ".join(f"{name} {version(name)}" for name in ("agentmerge", "numpy", "numba"))
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB; {versions}"


def version(name: str) -> str:
    from importlib.metadata import version as found

    return found(name)


def row_text(row: dict) -> str:
    def text(part: dict[str, float]) -> str:
        return f"{part['median']:.2f} ({part['low']:.2f} to {part['high']:.2f})"

    return (
        f"| {row['shape']} | {row['agents']} | {row['method']} | {'cold' if row['cold'] else 'warm'} "
        f"| {row['input_gb']:.1f} | {text(row['seconds'])} | {text(row['floor'])} | {row['ratio']:.2f} "
        f"| {row['seconds_per_gb']:.3f} | {row['peak_mb']:.0f} |"
    )


if __name__ == "__main__":
    main()
