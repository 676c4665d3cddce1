"""An update of 0 keeps the base's own bits, -0.0 too, whichever way it came to be 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.methods.registry import resolve_method
from agentmerge.tensors import DTYPES
from agentmerge.testing import assert_base_bits, assert_same_bits, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

TINY = 1e-30
"""So small a factor that a float32 update of 1e-20 becomes 0."""
ZEROS: tuple[tuple[str, Any, list[float], dict[str, float]], ...] = (
    ("shared changes cancel", "ram", [0.5, -0.5], {}),
    ("shared changes cancel under a scale", {"name": "ram_plus", "rescale": 0.5}, [0.5, -0.5], {}),
    ("they cancel in a sum", {"name": "ram", "shared": "sum"}, [0.5, -0.5], {}),
    ("no sign is elected", {"name": "ram", "shared": "elect"}, [0.5, -0.5], {}),
    ("lambda is 0", {"name": "ram_plus_auto", "bound": 0}, [0.5, 0], {}),
    ("the weight is 0", "ram", [0.5, 0], {"a": 0.0}),
    ("the weight is 0 under a scale", "ram_plus", [0.5, 0], {"a": 0.0}),
    ("the weights are 0 of a shared change", "ram", [0.5, 0.5], {"a": 0.0, "b": 0.0}),
    ("the weighted change underflows", {"name": "ram", "threshold": 0}, [1e-20, 0], {"a": TINY}),
    ("the weighted change underflows", {"name": "ram_plus", "threshold": 0}, [-1e-20, 0], {"a": TINY}),
    ("the factor is 0", {"name": "region", "agent": "a", "factor": 0.0}, [0.5, 0], {}),
    ("the factor is -0", {"name": "region", "agent": "a", "factor": -0.0}, [0.5, 0], {}),
    ("the diluted change underflows", {"name": "region", "agent": "a", "factor": TINY, "threshold": 0}, [1e-20, 0], {}),
    ("changes cancel", "task_arithmetic", [0.5, -0.5], {}),
    ("the scale is 0", {"name": "task_arithmetic", "scale": 0}, [0.5, 0.5], {}),
    ("changes cancel", "linear", [0.5, -0.5], {}),
    ("no sign is elected", {"name": "ties", "density": 1.0, "zero_sign": "zero"}, [0.5, -0.5], {}),
    ("the scale is 0", {"name": "ties", "scale": 0}, [0.5, 0.5], {}),
    ("dropped changes cancel", {"name": "dare", "density": 1.0, "then": "ram"}, [0.5, -0.5], {}),
    ("dropped or cancelled", {"name": "dare", "density": 0.5, "then": {"name": "region", "agent": "b"}}, [0.5, 0], {}),
)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(("why", "method", "changes", "weights"), ZEROS)
def test_minus_zero_stays_where_the_update_is_0(
    tmp_path: Path, why: str, method: Any, changes: list[float], weights: dict[str, float]
) -> None:
    """The last two elements are there to be merged: each agent has one to itself."""
    base = np.array([-0.0, 0.0, -0.0, 0.25, 0.25] * 7, np.float32)
    write_checkpoint(tmp_path / "base", {"w": base})
    agents = {}
    for t, (name, change) in enumerate(zip("ab", changes, strict=True)):
        own = np.where(np.arange(base.size) % 5 == 3 + t, np.float32(0.5), base)
        trained = np.where((base == 0) & (change != 0), np.float32(change), own)
        path = write_checkpoint(tmp_path / name, {"w": trained})
        agents[name] = {"source": str(path), "weight": weights.get(name, 1.0)}
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": method}
    merge({**recipe, "inputs": {"unchanged": "allow"}}, tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")["w"]
    assert_same_bits(found[base == 0], base[base == 0], why)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_minus_zero_stays_in_every_dtype(tmp_path: Path, dtype: str, rounding: str) -> None:
    base = np.array([-0.0, 0.0, 1.0], DTYPES[dtype])
    rows = {"a": [0.5, 0.5, 1.0], "b": [-0.5, -0.5, 2.0], "base": base}
    for name, row in rows.items():
        write_checkpoint(tmp_path / name, {"w": np.array(row, DTYPES[dtype])})
    agents = {name: str(tmp_path / name) for name in "ab"}
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": "ram", "output": {"rounding": rounding}}
    merge(recipe, tmp_path / "out")
    assert_same_bits(read_checkpoint(tmp_path / "out")["w"], np.array([-0.0, 0.0, 2.0], DTYPES[dtype]), dtype)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "ram"},
        {"name": "ram_plus"},
        {"name": "ram_plus_auto", "bound": 0},
        {"name": "ram", "shared": "importance"},
        {"name": "region", "agent": "code", "keep": "changed", "factor": 0.5},
        {"name": "fisher"},
        {"name": "wudi"},
        {"name": "resmerge"},
        {"name": "tsv_m"},
        {"name": "svc", "then": "ram"},
        {"name": "calibrate", "then": "ram"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_contract_asks_it_of_every_method(settings: dict[str, Any]) -> None:
    assert_base_bits(resolve_method(settings))
