"""Merge the shipped agents with every method and count; `python -m tests.demo.counting` writes golden.json anew.

Fisher reads importance, which takes torch to measure: here it is drawn at random.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import agentmerge
from agentmerge.demo.shipped import NAMES, TRIO, folder, recipe
from agentmerge.methods.registry import known_methods
from agentmerge.testing import random_importance, read_checkpoint, write_checkpoint

GOLDEN = Path(__file__).parent / "golden.json"
OTHERS = {"breadcrumbs_ties", "della_linear", "slerp", "multislerp", "model_stock", "nearswap"}
"""What these give is held by the golden numbers alone; two of them take no three agents."""
METHODS = sorted(known_methods().keys() - OTHERS)


def changed() -> dict[str, int]:
    """Elements that each of the four agents changed."""
    seen = agentmerge.probe(recipe({"name": "ram_plus"}, NAMES)).survey.agents
    return {name: agent.changed for name, agent in seen.items()}


def merged(method: str, scratch: Path) -> dict[str, int]:
    """How many stored numbers of the merge are not the base's, and the sum of all bits."""
    settings = {"name": method, **({"agent": "code"} if method == "region" else {})}
    wanted = recipe({"name": "ram"}, TRIO).dump() | {"method": settings}
    if method == "fisher":
        for number, name in enumerate(TRIO):
            wanted["agents"][name]["importance"] = str(importance(number, name, scratch))
    record = agentmerge.merge(wanted, scratch / "out")
    assert set(record.survey.agents) == set(TRIO)
    base, found = read_checkpoint(folder("base")), read_checkpoint(scratch / "out")
    pairs = [(base[name].view(np.uint16), found[name].view(np.uint16)) for name in sorted(base)]
    return {
        "changed": sum(int((a != b).sum()) for a, b in pairs),
        "bits": sum(int(b.astype(np.uint64).sum()) for _, b in pairs),
    }


def importance(seed: int, name: str, scratch: Path) -> Path:
    """Of an agent, the same in every run."""
    rng = np.random.default_rng(seed)
    drawn = {tensor: random_importance(rng, a.shape) for tensor, a in sorted(read_checkpoint(folder(name)).items())}
    return write_checkpoint(scratch / f"{name}.importance", drawn, config={})


def main() -> None:
    """Write what is expected."""
    methods = {}
    for method in METHODS:
        with tempfile.TemporaryDirectory() as scratch:
            methods[method] = merged(method, Path(scratch))
    GOLDEN.write_text(json.dumps({"changed": changed(), "methods": methods}, indent=1) + "\n")


if __name__ == "__main__":
    main()
