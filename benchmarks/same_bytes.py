"""The hash of everything that merges write, to hold one version of the code against another.

    python benchmarks/same_bytes.py --work DIR --json FILE [--shapes qwen2.5-0.5b]
    python benchmarks/same_bytes.py --compare BEFORE AFTER

Every method merges the golden set, the agents of `agentmerge demo` and synthetic sets of the given shapes, to nearest
and by stochastic rounding. A merge is the sha256 of each weight file, of each side file, and of its record without
timing, versions and paths. Run the first form once per version, with PYTHONPATH on its src, in the same DIR.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from agentmerge import merge

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
METHODS: dict[str, Any] = {
    "ram": "ram",
    "ram_plus": "ram_plus",
    "ram_plus_soft": "ram_plus_soft",
    "ram_plus_auto": "ram_plus_auto",
    "ram_plus tensor": {"name": "ram_plus", "scope": "tensor", "clip": 0.2},
    "ram_plus elect": {"name": "ram_plus", "shared": "elect", "shared_power": 0.5},
    "ram_plus sum": {"name": "ram_plus", "shared": "sum"},
    "ram_plus importance": {"name": "ram_plus", "shared": "importance"},
    "task_arithmetic": "task_arithmetic",
    "linear": "linear",
    "ties": "ties",
    "ties tensor sum": {"name": "ties", "scope": "tensor", "normalize": False, "zero_sign": "plus"},
    "dare": "dare",
    "dare ties": {"name": "dare", "then": "ties"},
    "dare 1 calibrate": {"name": "dare", "density": 1, "then": {"name": "calibrate", "then": "ram"}},
    "fisher": {"name": "fisher", "normalize": True},
    "wudi": {"name": "wudi", "steps": 2},
    "wudi exact": {"name": "wudi", "solver": "exact"},
    "resmerge": "resmerge",
    "tsv_m": "tsv_m",
    "iso_c": "iso_c",
    "iso_cts": "iso_cts",
    "svc ties": {"name": "svc", "then": "ties"},
    "region": {"name": "region", "agent": "tool", "keep": "shared", "factor": 0.5},
    "calibrate": {"name": "calibrate", "then": "ram"},
    "calibrate dare": {"name": "calibrate", "then": {"name": "dare", "then": "ram"}},
}
SLOW = {"wudi", "wudi exact", "resmerge", "tsv_m", "iso_c", "iso_cts", "svc ties"}
"""Left out of the synthetic sets."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="a folder for inputs and outputs")
    parser.add_argument("--json", type=Path, help="where the hashes go")
    parser.add_argument("--shapes", default="", help="of synthetic sets, comma-separated")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        sys.exit(compare(*(json.loads(path.read_text()) for path in options.compare)))
    found = {}
    for name, (base, agents, importance) in sets(options.work, options.shapes).items():
        for method, settings in METHODS.items():
            lacking = "importance" in json.dumps(settings) or "fisher" in method
            if (lacking and importance is None) or (name not in ("golden", "shipped") and method in SLOW):
                continue
            sources = {
                agent: {
                    "source": str(path),
                    **({"importance": str(importance / f"{agent}.safetensors")} if importance else {}),
                }
                for agent, path in agents.items()
            }
            for rounding in ("nearest", "stochastic"):
                recipe = {"base": str(base), "agents": sources, "method": settings, "output": {"rounding": rounding}}
                found[f"{name}: {method}: {rounding}"] = hashes(recipe, options.work / "merged")
                print(f"{name}: {method}: {rounding}", flush=True)
    options.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def sets(work: Path, shapes: str) -> dict[str, tuple[Path, dict[str, Path], Path | None]]:
    """Base, agents and importance of every set by its name."""
    names, found = ("code", "memory", "tool"), dict[str, Any]()
    shipped = Path(str(resources.files("agentmerge"))) / "demo" / "agents"
    for name, stored in {"golden": GOLDEN, "shipped": shipped}.items():
        folder = work / name  # paths are part of what is written, so they must be the same for every version
        if not folder.exists():
            shutil.copytree(stored, folder)
        importance = folder / "importance" if name == "golden" else None
        found[name] = folder / "base", {agent: folder / agent for agent in names}, importance
    for shape in filter(None, shapes.split(",")):
        folder = work / shape
        if not folder.exists():
            from agentmerge.synth.write import synthesise

            synthesise(shape, folder)
        found[shape] = folder / "base", {name: folder / name for name in names}, None
    return found


def hashes(recipe: dict[str, Any], out: Path) -> dict[str, str]:
    """Merge and hash."""
    shutil.rmtree(out, ignore_errors=True)
    record = merge(recipe, out, full=True).model_dump(mode="json", exclude={"timing", "versions"})
    record["sources"] = sorted(record["sources"])
    found = {"record": _hash(json.dumps(record, sort_keys=True).encode())}
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.name != "merge_record.json":
            found[str(path.relative_to(out))] = _hash(path.read_bytes())
    shutil.rmtree(out)
    return found


def compare(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> int:
    """Print what differs; 1 where anything does."""
    lines = [f"only in one: {name}" for name in sorted(before.keys() ^ after.keys())]
    for name in before.keys() & after.keys():
        files = before[name].keys() | after[name].keys()
        lines += [f"{name}: {file}" for file in sorted(files) if before[name].get(file) != after[name].get(file)]
    print("\n".join(sorted(lines)) or f"{len(before)} merges are the same, file by file")
    return bool(lines)


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


if __name__ == "__main__":
    main()
