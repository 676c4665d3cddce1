"""Full size: memory stays where it is, however large the model."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

pytestmark = pytest.mark.slow

MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def test_a_half_billion_parameters_merge_in_under_300_mb(tmp_path):
    agentmerge = [sys.executable, "-c", "from agentmerge.cli import main; main()"]
    for shape in ("tiny", "qwen2.5-0.5b"):  # the first has the loops compiled, which takes memory of its own
        made, out = tmp_path / shape, tmp_path / f"{shape}-merged"
        subprocess.run([*agentmerge, "synth", "--shape", shape, "--out", made, "--quiet"], check=True)
        agents = [word for name in ("code", "tool", "memory") for word in ("--agent", f"{name}={made / name}")]
        merge = [*agentmerge, "merge", "--base", made / "base", *agents, "--out", out, "--quiet"]
        done = subprocess.run([sys.executable, "-c", MEASURE, *merge], capture_output=True, text=True, check=True)
    code, peak = map(int, done.stdout.split())
    assert code == 0
    assert peak < 300_000_000
    record = json.loads((out / "merge_record.json").read_text())
    assert record["survey"]["elements"] == 494_032_768
    assert record["survey"]["agents"]["code"]["scale"] == pytest.approx(1.2)
    with safe_open(out / "model.safetensors", framework="np") as merged:
        norm = merged.get_tensor("model.norm.weight")
    assert np.isfinite(norm.astype(np.float32)).all()
