"""Merge the shipped agents with every method and count; `python -m tests.demo.counting` writes golden.json anew.

Some methods read importance or Gram matrices, which take torch to measure: here they are drawn at random.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import agentmerge
from agentmerge.demo.shipped import NAMES, TRIO, folder, recipe
from agentmerge.methods.disentangle import Disentangle
from agentmerge.methods.layers import LINEAR, WholeMatrices, matches
from agentmerge.methods.registry import known_methods, resolve_method
from agentmerge.methods.svc import Svc
from agentmerge.testing import random_gram, random_importance, read_checkpoint, write_checkpoint

GOLDEN = Path(__file__).parent / "golden.json"
OTHERS = {"breadcrumbs_ties", "della_linear", "slerp", "multislerp", "model_stock", "nearswap"}
"""What these give is held by the golden numbers alone; two of them take no three agents."""
METHODS = sorted(known_methods().keys() - OTHERS)
WHOLE = {name for name, method in known_methods().items() if issubclass(method, WholeMatrices | Svc | Disentangle)}
"""Methods of whole matrices, or that search: BLAS has a say."""


def changed() -> dict[str, int]:
    """Elements that each of the four agents changed."""
    seen = agentmerge.probe(recipe({"name": "ram_plus"}, NAMES)).survey.agents
    return {name: agent.changed for name, agent in seen.items()}


def merged(method: str, scratch: Path) -> dict[str, int]:
    """How many stored numbers of the merge are not the base's, and the sum of all bits."""
    settings = {"name": method, **({"agent": "code"} if method == "region" else {})}
    wanted = recipe({"name": "ram"}, TRIO).dump() | {"method": settings}
    for kind in resolve_method(settings).reads:
        for number, name in enumerate(TRIO):
            wanted["agents"][name][kind] = str(drawn(kind, number, name, scratch))
    record = agentmerge.merge(wanted, scratch / "out")
    assert set(record.survey.agents) == set(TRIO)
    base, found = read_checkpoint(folder("base")), read_checkpoint(scratch / "out")
    pairs = [(base[name].view(np.uint16), found[name].view(np.uint16)) for name in sorted(base)]
    return {
        "changed": sum(int((a != b).sum()) for a, b in pairs),
        "bits": sum(int(b.astype(np.uint64).sum()) for _, b in pairs),
    }


def drawn(kind: str, seed: int, name: str, scratch: Path) -> Path:
    """Importance or Gram matrices of an agent, the same in every run."""
    rng, tensors = np.random.default_rng(seed), sorted(read_checkpoint(folder(name)).items())
    if kind == "importance":
        made = {tensor: random_importance(rng, a.shape) for tensor, a in tensors}
    else:
        made = {tensor: random_gram(rng, (a.shape[-1],) * 2) for tensor, a in tensors if matches(tensor, LINEAR)}
    return write_checkpoint(scratch / f"{name}.{kind}", made, config={})


def main() -> None:
    """Write what is expected."""
    methods = {}
    for method in METHODS:
        with tempfile.TemporaryDirectory() as scratch:
            methods[method] = merged(method, Path(scratch))
    GOLDEN.write_text(json.dumps({"changed": changed(), "methods": methods}, indent=1) + "\n")


if __name__ == "__main__":
    main()
