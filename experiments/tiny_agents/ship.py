"""Copy the first seed's checkpoints into the package, and write the golden counts that the tests expect of them.

python experiments/tiny_agents/ship.py --agents DIR
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from agentmerge.demo.shipped import AGENTS, NAMES

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def main() -> None:
    """Copy, then merge with every method and count."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=Path, required=True)
    source = parser.parse_args().agents / "seed1"
    for name in ("base", *NAMES):
        (AGENTS / name).mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copyfile(source / name / file, AGENTS / name / file)
    subprocess.run([sys.executable, "-m", "tests.demo.counting"], check=True, cwd=Path(__file__).parents[2])


if __name__ == "__main__":
    main()
