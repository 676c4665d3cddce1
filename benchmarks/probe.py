"""Seconds of a plain and of a full probe, beside reading the same bytes once in the same run.

    python benchmarks/probe.py --work DIR [--shape qwen2.5-1.5b] [--agents 3] [--repeat 5] [--block-sizes auto,2MB]

Inputs are warm; the three are alternated in one process, after one round that does not count.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from run import machine, read_all, spread

from agentmerge.api import probe
from agentmerge.recipe import Recipe
from agentmerge.synth.write import synthesise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder with room for the inputs")
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--block-sizes", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.work / f"{options.shape}-{options.agents}"
    if not folder.exists():
        synthesise(options.shape, folder, agents=options.agents)
    print(machine())
    rows = [measure(folder, size, options.repeat) for size in options.block_sizes.split(",")]
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def measure(folder: Path, block_size: str, repeat: int) -> dict[str, object]:
    agents = {path.parent.name: str(path.parent) for path in folder.glob("*/config.json") if path.parent.name != "base"}
    run = {} if block_size == "auto" else {"run": {"block_size": block_size}}
    recipe = Recipe.parse({"base": str(folder / "base"), "agents": agents, "method": "ram_plus", **run})
    inputs = [path for name in ("base", *agents) for path in (folder / name).glob("*.safetensors")]
    reads, plain, full = [], [], []
    for number in range(repeat + 1):
        found = [timed(lambda: read_all(inputs)), timed(lambda: probe(recipe)), timed(lambda: probe(recipe, full=True))]
        for seconds, times in zip(found, (reads, plain, full), strict=True):
            times += [seconds] if number else []
    row = {"shape": folder.name, "block_size": block_size}
    row |= {"read_once": spread(reads), "plain": spread(plain), "full": spread(full)}
    ratios = [row[name]["median"] / row["read_once"]["median"] for name in ("plain", "full")]
    print(json.dumps(row), f"plain {ratios[0]:.2f} x, full {ratios[1]:.2f} x reading once", flush=True)
    return row


def timed(call) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


if __name__ == "__main__":
    main()
