"""64 agents of one run: the memory that a plan says, and no more files open than a process may have."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.tensors import DTYPES
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array

AGENTS, FILES, MB = 64, 256, 1_000_000
MERGE = """
import json, sys
import agentmerge
from agentmerge.engine import estimate
from agentmerge.engine.preflight import planned
recipe = agentmerge.Recipe.parse(json.loads(sys.argv[1]))
with planned(recipe) as plan:
    expected = estimate.memory_bytes(plan)
agentmerge.merge(recipe, sys.argv[2])
open(sys.argv[3], "w").write(str(expected))
"""
SHAPES = {f"model.layers.{i}.mlp.up_proj.weight": (2048, 1024) for i in range(4)}


def put(folder: Path) -> dict[str, str]:
    """A base and agents in several files each; of three agents the others are further names."""
    rng, base = np.random.default_rng(0), {}
    for name, shape in SHAPES.items():
        base[name] = (0.02 * rng.standard_normal(shape, np.float32)).astype(DTYPES["BF16"])
    size = 2 * 2048 * 1024
    write_checkpoint(folder / "base", base, shard_size=size)
    for t in range(3):
        write_checkpoint(folder / f"trained{t}", {n: stepped(a, rng) for n, a in base.items()}, shard_size=size)
    agents = {}
    for t in range(AGENTS):
        (folder / f"agent{t}").mkdir()
        for path in (folder / f"trained{t % 3}").iterdir():
            os.link(path, folder / f"agent{t}" / path.name)
        agents[f"agent{t}"] = str(folder / f"agent{t}")
    return agents


def stepped(array: Array, rng: np.random.Generator) -> Array:
    return (array.view(np.uint16) + 2 * (rng.random(array.shape) < 0.3)).astype(np.uint16).view(array.dtype)


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("method", ["ram", "linear"])
def test_64_agents_are_merged_in_400_mb_with_256_open_files(tmp_path: Path, method: str) -> None:
    agents = put(tmp_path)
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": method, "run": {"workers": 2}}
    arguments = [json.dumps(recipe), str(tmp_path / "out"), str(tmp_path / "expected")]
    process = subprocess.Popen([sys.executable, "-c", MERGE, *arguments], preexec_fn=limited)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    peak, expected = usage.ru_maxrss * 1024, int((tmp_path / "expected").read_text())
    assert peak < 400 * MB
    assert expected < 400 * MB
    assert peak < expected + 40 * MB
    assert read_checkpoint(tmp_path / "out").keys() == SHAPES.keys()
