"""No odd input makes numpy warn: a probe, a report and a merge are silent, or end with an error of their own.

pytest makes every warning an error; what a user sees is stderr, which the last test looks at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.errors import MergeError
from agentmerge.report.page import page
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.tensors import Array

    Tensors = dict[str, Array]

pytestmark = pytest.mark.usefixtures("unsynced")
METHODS: tuple[Any, ...] = (
    {"name": "ram_plus_auto", "threshold": 0, "bound": 0.5},
    {"name": "ram_plus_auto", "scope": "tensor", "shared": "elect"},
    {"name": "ties", "density": 1e-3},
    {"name": "fisher", "normalize": True, "floor": 0},
    {"name": "calibrate", "then": "ram"},
    {"name": "calibrate", "retention": 1e300, "then": "ties"},
    {"name": "dare", "density": 1e-6, "then": {"name": "calibrate", "then": "ram_plus_auto"}},
)


def sets() -> Iterator[tuple[str, Tensors, list[Tensors]]]:
    """A name, a base and its agents."""
    rng = np.random.default_rng(0)
    base = {"model.layers.0.w": rng.normal(0, 0.02, (6, 5)).astype("f4"), "model.norm.weight": np.ones(7, "f4")}
    moved = {name: (array + 0.01 * (rng.random(array.shape) < 0.5)).astype("f4") for name, array in base.items()}
    zeros = {name: np.zeros_like(array) for name, array in base.items()}
    yield "one agent that changed nothing", base, [base]
    yield "an agent that changed nothing", base, [moved, base]
    yield "nobody changed anything", base, [base, base]
    yield "all zero", zeros, [zeros, zeros]
    yield "agents of zeros", base, [zeros, zeros]
    yield "one element", {"w": np.ones(1, "f4")}, [{"w": np.full(1, 2, "f4")}]
    empty = {"e": np.zeros((0, 3), "f4")}
    yield "a scalar and nothing", {"w": np.array(1, "f4"), **empty}, [{"w": np.array(2, "f4"), **empty}] * 2
    for size in (3e38, 1e20, 1e-20, 1e-42):
        far = {"w": np.full(5, size, "f4"), "v": np.ones(3, "f4")}
        yield f"turned round at {size}", far, [{**far, "w": -far["w"]}, {**far, "v": np.zeros(3, "f4")}]
    half = {"w": np.full(5, 65504, "f2")}
    yield "the ends of float16", half, [{"w": -half["w"]}, half]
    yield "beyond float32", {"w": np.full(5, 1e300)}, [{"w": np.full(5, 1e301)}]
    yield "small in bfloat16", {"w": np.ones(9, ml_dtypes.bfloat16)}, [{"w": np.full(9, 1e-40, ml_dtypes.bfloat16)}] * 3


SETS = {name: (base, agents) for name, base, agents in sets()}


def recipe(folder: Path, base: Tensors, agents: list[Tensors]) -> dict[str, Any]:
    """Without a method; the importance of every second element is 0."""
    named = {}
    for t, tensors in enumerate(agents):
        known = {
            n: (np.arange(a.size) % 2 * 10.0 ** (30 * t - 30)).reshape(a.shape).astype("f4") for n, a in base.items()
        }
        path, importance = (write_checkpoint(folder / f"{kind}{t}", x) for kind, x in (("a", tensors), ("i", known)))
        named[f"a{t}"] = {"source": str(path), "importance": str(importance)}
    allowed = {"inputs": {"unchanged": "allow"}, "run": {"workers": 1}}
    return {"base": str(write_checkpoint(folder / "base", base)), "agents": named, **allowed}


@pytest.mark.parametrize("name", SETS)
def test_no_method_and_no_report_warns(tmp_path: Path, name: str) -> None:
    sources = recipe(tmp_path, *SETS[name])
    for number, method in enumerate(METHODS):
        wanted = {**sources, "method": method}
        with suppress(MergeError):
            page(probe(wanted, full=True))
        with suppress(MergeError):
            page(merge(wanted, tmp_path / f"out{number}", full=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["an agent that changed nothing", "all zero"])
def test_the_command_line_says_nothing_on_stderr(tmp_path: Path, name: str) -> None:
    sources = recipe(tmp_path, *SETS[name])
    agents = [f"--agent={agent}={given['source']}" for agent, given in sources["agents"].items()]
    common = [f"--base={sources['base']}", *agents, "--unchanged=allow", "--quiet"]
    for command in (
        ["probe", *common, "--full", f"--html={tmp_path / 'p.html'}"],
        ["merge", *common, f"--out={tmp_path / 'out'}", "--report"],
    ):
        whole = [sys.executable, "-c", "import sys; from agentmerge.cli import main; sys.exit(main())", *command]
        environment = {**os.environ, "PYTHONWARNINGS": "always"}
        ran = subprocess.run(whole, capture_output=True, text=True, check=False, env=environment)
        assert (ran.returncode, ran.stderr) == (0, ""), command
