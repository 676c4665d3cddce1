"""mergekit's configurations through mergekit and, converted, through agentmerge: what is equal, and what differs how.

    python benchmarks/mergekit_configs.py --work DIR [--python PEER_PYTHON] [--only NAME...]

The configurations of benchmarks/mergekit_configs are of the kinds that people publish, over stand-in models of 4 layers
with a head of their own. Both merge each, and the tensors are compared one by one. Printed is a table in Markdown:

    equal      to the bit
    rounding   nowhere more than a few steps of the stored dtype apart, at the size of the numbers that are added
    draws      other elements are dropped; the update along the agents' changes is compared as a whole
    differs    anything else; what `convert` said of it stands below the table
    refused    by `convert`, with its reasons below the table

PEER_PYTHON is the Python of an environment with mergekit 0.1.5; without it one is made in DIR (it installs torch).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from peers import environment

import agentmerge
from agentmerge.errors import MergeError
from agentmerge.mergekit import convert_mergekit
from agentmerge.synth.write import synthesise
from agentmerge.tensors import as_float32
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.tensors import Array

CONFIGS = Path(__file__).parent / "mergekit_configs"
MODELS = ("base", "code", "tool", "memory", "half")
FEW = {"float32": 8, "bfloat16": 4, "float16": 4}
"""Steps that count as rounding; in 16 bits mergekit rounds after every operation."""
MANTISSA = {"float32": 23, "bfloat16": 7, "float16": 10}
LOWEST = {"float32": -149, "bfloat16": -133, "float16": -24}
"""The smallest steps, as powers of 2."""


@dataclass(frozen=True)
class Row:
    """One configuration."""

    name: str
    result: str
    difference: str
    said: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--python", type=Path, help="of an environment that has mergekit")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    work = options.work.resolve()
    peer = (options.python or environment(work / "mergekit")).absolute()
    models = stand_ins(work / "models", peer)
    configs = sorted(c for c in CONFIGS.glob("*.yml") if not options.only or c.stem in options.only)
    with chdir(models):
        failed = theirs(peer, configs, work / "theirs")
        rows = [row_of(config, work, failed[str(config)]) for config in configs]
    print_table(rows)


def stand_ins(folder: Path, peer: Path) -> Path:
    """Base and agents with heads and tokenizers, one of them in float16 once more."""
    if (folder / "half").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    synthesise("tiny", folder, agents=3)
    for name in MODELS:
        found = "code" if name == "half" else name
        tensors = read_checkpoint(folder / found)
        config = json.loads((folder / found / "config.json").read_text())
        if name == "half":
            tensors = {n: as_float32(t).astype(np.float16) for n, t in tensors.items()}
            config["torch_dtype"] = "float16"
        else:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        shutil.rmtree(folder / name, ignore_errors=True)
        write_checkpoint(folder / name, tensors, config={**config, "tie_word_embeddings": False})
    call(peer, "tokenizers", *(folder / name for name in MODELS))
    return folder


def theirs(peer: Path, configs: Iterable[Path], out: Path) -> dict[str, str]:
    """Run mergekit on each; what it failed with, by configuration."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    jobs = [[str(config), str(out / config.stem)] for config in configs]
    (out / "jobs.json").write_text(json.dumps(jobs))
    found: dict[str, str] = json.loads(call(peer, "merge", out / "jobs.json").splitlines()[-1])
    return found


def call(peer: Path, *words: object) -> str:
    """What mergekit's side prints."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(peer), str(CONFIGS / "peer.py"), *map(str, words)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**alone, "HF_HUB_OFFLINE": "1"}
    ).stdout


def row_of(config: Path, work: Path, failed: str) -> Row:
    """Convert, merge and compare one."""
    try:
        conversion = convert_mergekit(config)
        shutil.rmtree(work / "ours" / config.stem, ignore_errors=True)
        record = agentmerge.merge(conversion.data, work / "ours" / config.stem)
    except MergeError as error:
        reasons = tuple(str(problem).removeprefix(f"{config}: ") for problem in error.problems)
        return Row(config.stem, "refused", "", reasons)
    said = conversion.warnings
    if not list((work / "theirs" / config.stem).glob("*.safetensors")):
        return Row(config.stem, "only here", f"mergekit: {failed}", said)
    mine, other = (read_checkpoint(work / side / config.stem) for side in ("ours", "theirs"))
    random = record.recipe["method"]["name"] in ("dare", "della", "della_linear")
    dropped = random and any("another generator" in word for word in said)
    sources = [record.recipe["base"], *(agent["source"] for agent in record.recipe["agents"].values())]
    return Row(config.stem, *(along(mine, other, sources) if dropped else compared(mine, other, sources[0])), said)


def compared(mine: dict[str, Array], other: dict[str, Array], base: str) -> tuple[str, str]:
    """The result, and the largest difference in steps of the stored dtype."""
    if mine.keys() != other.keys():
        return "differs", f"tensors {sorted(mine.keys() ^ other.keys())[:3]}"
    start, worst, differing, elements, few = read_checkpoint(Path(base)), 0.0, 0, 0, 8
    for name, array in mine.items():
        steps = steps_between(array, other[name], start[name])
        worst, differing = max(worst, float(steps.max(initial=0))), differing + int((steps > 0).sum())
        elements, few = elements + steps.size, min(few, FEW[str(narrower(array, other[name]))])
    types = {(str(mine[name].dtype), str(other[name].dtype)) for name in mine}
    stored = "; ".join(f"stored as {a}, mergekit as {b}" for a, b in sorted(types) if a != b)
    if not differing:
        return ("equal" if not stored else "rounding"), stored
    share = f"{differing:,} of {elements:,} elements, by {worst:.3g} steps at most"
    return ("rounding" if worst <= few else "differs"), f"{share}; {stored}" if stored else share


def narrower(one: Array, other: Array) -> np.dtype:
    return one.dtype if one.dtype.itemsize <= other.dtype.itemsize else other.dtype


def steps_between(mine: Array, other: Array, base: Array) -> Array:
    """How far apart two results are, in steps of the narrower dtype at the largest of the numbers involved, [n]."""
    dtype = narrower(mine, other)
    a, b = (as_float32(array.astype(dtype)).reshape(-1).astype(np.float64) for array in (mine, other))
    size = np.maximum.reduce([np.abs(a), np.abs(b), np.abs(as_float32(base).reshape(-1).astype(np.float64))])
    step = np.floor(np.log2(np.maximum(size, 2.0**-126))) - MANTISSA[str(dtype)]
    return np.abs(a - b) / np.exp2(np.maximum(step, LOWEST[str(dtype)]))


def along(mine: dict[str, Array], other: dict[str, Array], sources: list[str]) -> tuple[str, str]:
    """How far each result moves the way of the agents' summed change, ours against mergekit's, by tensor and in all."""
    start, *agents = (read_checkpoint(Path(source)) for source in sources)
    totals, ratios = np.zeros(2), []
    for name, array in mine.items():
        base = as_float32(start[name]).astype(np.float64)
        way = np.sign(sum(as_float32(agent[name]).astype(np.float64) - base for agent in agents))
        held = np.array([((as_float32(result) - base) * way).sum() for result in (array, other[name])])
        totals += held
        if array.size > 10_000:
            ratios.append(held[0] / held[1])
    span = f"{min(ratios):.2f} to {max(ratios):.2f} by tensor"
    return "draws", f"the update is {totals[0] / totals[1]:.3f} of mergekit's, {span}"


def print_table(rows: list[Row]) -> None:
    print("| configuration | result | difference |\n|---|---|---|")
    for row in rows:
        print(f"| `{row.name}` | {row.result} | {row.difference} |")
    counts = {result: sum(row.result == result for row in rows) for result in dict.fromkeys(r.result for r in rows)}
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    for row in rows:
        print(f"\n{row.name}", *(f"  {said}" for said in row.said), sep="\n")


if __name__ == "__main__":
    main()
