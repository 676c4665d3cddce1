"""Many agents at once: peak memory, seconds and files open at a time, by number of agents.

Writes a synthetic base and a few agents; the others are further names (hard links) of these, which a merge reads as
files of their own, so that 64 agents need the disk of a few. What is in memory of few files stays there: the times are
of inputs in the page cache.

    python benchmarks/many_inputs.py --shape qwen2.5-0.5b --agents 2,8,64 --methods ram,ram_plus,linear --folder DIR
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

from agentmerge.synth.write import synthesise

AGENT = """
import json, sys, time
started = time.time()
import agentmerge
from agentmerge.engine.preflight import planned
recipe = agentmerge.Recipe.parse(json.loads(sys.argv[1]))
with planned(recipe) as plan:
    opened = time.time() - started
record = agentmerge.merge(recipe, sys.argv[2])
print(json.dumps({"startup": opened, "bytes_read": record.timing.bytes_read, "folds": record.timing.folds,
                  "seconds": record.timing.fold_seconds + record.timing.map_seconds,
                  "elements": record.survey.elements}))
"""
"""What is measured, in a process of its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--agents", default="2,8,64")
    parser.add_argument("--methods", default="ram,linear")
    parser.add_argument("--distinct", type=int, default=3, help="agents that are written; the others are links to them")
    parser.add_argument("--shard-size", type=int, default=5_000_000_000, help="bytes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--open-files", type=int, default=0, help="limit of the merging process; 0 leaves it")
    parser.add_argument("--folder", type=Path, help="where the set is kept; a temporary one when left out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        made = written(Path(folder), arguments)
        for method in arguments.methods.split(","):
            for count in map(int, arguments.agents.split(",")):
                print(json.dumps({"method": method, "agents": count, **measured(made, method, count, arguments)}))


def written(folder: Path, arguments: argparse.Namespace) -> Path:
    """A folder with `base` and agents by number."""
    synthesise(
        arguments.shape,
        folder / "set",
        agents=arguments.distinct,
        shard_size=arguments.shard_size,
        workers=arguments.workers,
    )
    sources = sorted(path for path in (folder / "set").iterdir() if path.is_dir() and path.name != "base")
    for number in range(max(map(int, arguments.agents.split(",")))):
        linked(sources[number % len(sources)], folder / f"agent{number}")
    return folder


def linked(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        os.link(path, target / path.name)


def measured(made: Path, method: str, count: int, arguments: argparse.Namespace) -> dict[str, float]:
    """One merge in a process of its own: its peak memory in MB, seconds, and the most files that it had open."""
    recipe = {
        "base": str(made / "set" / "base"),
        "agents": {f"agent{number}": str(made / f"agent{number}") for number in range(count)},
        "method": method,
        "run": {"workers": arguments.workers},
    }
    out = made / "out"
    command = [sys.executable, "-c", AGENT, json.dumps(recipe), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=limited(arguments.open_files))
    most = [0]
    watching = Thread(target=watch, args=(process, most))
    watching.start()
    assert process.stdout is not None
    told = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    watching.join()
    shutil.rmtree(out, ignore_errors=True)
    if process.returncode:
        raise SystemExit(f"the merge ended with {process.returncode}")
    found = json.loads(told)
    elements = found["elements"] * count * (1 + found["folds"])
    return {
        "peak_mb": round(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6, 1),
        "open_files": most[0],
        "startup_s": round(found["startup"], 2),
        "seconds": round(found["seconds"], 2),
        "ns_per_agent_element": round(1e9 * found["seconds"] / elements, 2),
        "gb_read_per_pass": round(found["bytes_read"] / 1e9, 3),
    }


def limited(files: int):
    """What sets the limit of open files in the new process; None leaves it."""
    return (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None


def watch(process: subprocess.Popen[bytes], most: list[int]) -> None:
    """Count the open files of a process now and then, where the system tells (Linux)."""
    folder = Path(f"/proc/{process.pid}/fd")
    while process.returncode is None:
        try:
            most[0] = max(most[0], sum(1 for _ in folder.iterdir()))
        except OSError:
            return
        time.sleep(0.005)


if __name__ == "__main__":
    main()
