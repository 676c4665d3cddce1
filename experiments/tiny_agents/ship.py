"""Copy the first seed's checkpoints into the package, and write the golden counts that the tests expect of them.

python experiments/tiny_agents/ship.py --agents DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from demo.shipped import AGENTS, NAMES, TRIO, folder, recipe
from safetensors.numpy import load_file

import agentmerge
from agentmerge.methods.registry import known_methods

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
GOLDEN = Path(__file__).parents[2] / "tests" / "demo" / "golden.json"


def main() -> None:
    """Copy, merge with every method, count."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=Path, required=True)
    source = parser.parse_args().agents / "seed1"
    for name in ("base", *NAMES):
        (AGENTS / name).mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copyfile(source / name / file, AGENTS / name / file)
    seen = agentmerge.probe(recipe({"name": "ram_plus"}, NAMES)).survey.agents
    golden: dict[str, Any] = {"changed": {name: agent.changed for name, agent in seen.items()}, "methods": {}}
    for name in sorted(set(known_methods()) - {"fisher"}):
        with tempfile.TemporaryDirectory() as scratch:
            settings = {"name": name, **({"agent": "code"} if name == "region" else {})}
            agentmerge.merge(recipe(settings, TRIO), Path(scratch) / "out")
            golden["methods"][name] = counted(Path(scratch) / "out")
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


def counted(out: Path) -> dict[str, int]:
    """How many stored numbers are not the base's, and the sum of all bits, as tests/demo/test_shipped.py counts."""
    base, merged = load_file(folder("base") / FILES[2]), load_file(out / FILES[2])
    pairs = [(base[name].view(np.uint16), merged[name].view(np.uint16)) for name in sorted(base)]
    return {
        "changed": sum(int((a != b).sum()) for a, b in pairs),
        "bits": sum(int(b.astype(np.uint64).sum()) for _, b in pairs),
    }


if __name__ == "__main__":
    main()
