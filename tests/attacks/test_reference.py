"""Random small merges, hostile numbers among them, against a reference written from the documents alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import kernels, merge
from agentmerge.errors import DataError
from agentmerge.tensors import DTYPES
from agentmerge.testing import assert_same_bits, read_checkpoint, write_checkpoint
from tests.attacks import reference
from tests.attacks.reference import Case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.record import MergeRecord
    from agentmerge.tensors import Array

SMALL = (0.0, -0.0, -0.0, -0.0, -0.0, 1e-45, -3e-40, 1.2e-38, 1e-20, 6e-8, 1e-5, -1.0000001e-5, 0.02, -1.0, 1.0)
LARGE = (1e7, -3e6, 65504.0, 1e18, -1e30)
LARGEST = (3.3e38, -3.3e38)
"""Whose differences overflow; an intermediate result of another rounding may or may not."""
NAMES = ("model.layers.0.w", "model.layers.1.w", "model.norm.weight")
ROUNDS = int(os.environ.get("AGENTMERGE_ROUNDS", "3"))
"""Merges per method."""
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "ram"},
    {"name": "ram", "threshold": 0},
    {"name": "ram", "shared": "sum"},
    {"name": "ram", "shared": "elect", "shared_power": 0.5},
    {"name": "ram", "shared": "importance", "threshold": 0.01},
    {"name": "ram_plus"},
    {"name": "ram_plus", "rescale": 0.5, "clip": 1.0, "threshold": 0},
    {"name": "ram_plus", "scope": "tensor", "shared_power": 0},
    {"name": "ram_plus_soft"},
    {"name": "ram_plus_auto"},
    {"name": "ram_plus_auto", "bound": 0, "threshold": 0},
    {"name": "ram_plus_auto", "scope": "tensor", "shared": "elect"},
    {"name": "task_arithmetic"},
    {"name": "task_arithmetic", "scale": 0},
    {"name": "task_arithmetic", "scale": 1.5},
    {"name": "linear"},
    {"name": "ties"},
    {"name": "ties", "density": 1.0, "zero_sign": "plus"},
    {"name": "ties", "density": 0.5, "scope": "tensor", "zero_sign": "zero", "scale": 1.3},
    {"name": "ties", "density": 0.7, "normalize": False},
    {"name": "fisher"},
    {"name": "fisher", "floor": 0, "scale": 0.7},
    {"name": "fisher", "normalize": True},
    {"name": "region", "agent": "a", "keep": "changed"},
    {"name": "region", "agent": "a", "factor": 0.0},
    {"name": "region", "agent": "a", "keep": "shared", "factor": 0.5},
    {"name": "wudi"},
    {"name": "wudi", "others": "sum"},
    {"name": "dare", "then": {"name": "ram", "threshold": 0}},
    {"name": "dare", "density": 0.7, "seed": 5, "then": {"name": "ties", "density": 0.4}},
    {"name": "dare", "density": 1.0, "then": {"name": "ram_plus"}},
    {"name": "dare", "then": {"name": "fisher"}},
    {"name": "dare", "then": {"name": "region", "agent": "a", "keep": "changed"}},
    {"name": "calibrate", "then": {"name": "task_arithmetic"}},
    {"name": "calibrate", "retention": 0.8, "then": {"name": "ram_plus"}},
    {"name": "calibrate", "then": {"name": "dare", "then": {"name": "ram"}}},
    {"name": "dare", "density": 0.9, "then": {"name": "calibrate", "then": {"name": "ram"}}},
)


@pytest.fixture(autouse=True)
def not_waiting(unsynced: None) -> None:
    """The disk is not what is tried."""


def _numbers(rng: np.random.Generator, n: int, pool: Any) -> Array:
    plain = 0.02 * rng.standard_normal(n)
    return np.where(rng.random(n) < 0.4, rng.choice(pool, n), plain)


def _trained(rng: np.random.Generator, base: Array, pool: Any) -> Array:
    """The base with about half of its elements changed: turned round, moved a little, or anything."""
    wide = base.astype(float)
    anything = _numbers(rng, base.size, pool)
    step = rng.choice([0.5, -0.5], base.size)
    moved = np.choose(rng.integers(0, 4, base.size), [-wide, wide + step, wide + 0.01, anything])
    moved = np.where((base == 0) & (rng.random(base.size) < 0.7), step, moved)  # so that some cancel on -0.0
    with np.errstate(over="ignore"):
        made = moved.astype(base.dtype)
    return np.where((rng.random(base.size) < 0.5) & np.isfinite(made.astype(np.float32)), made, base)


def _case(rng: np.random.Generator, large: tuple[float, ...], odd: tuple[float, ...]) -> Case:
    """One to five agents, sometimes 64; three tensors of any dtype; rules, missing tensors, weights, importance."""
    agents = ["a", *(f"a{t:02d}" for t in range(63))] if rng.random() < 0.03 else list("abcde")[: rng.integers(1, 6)]
    pool = (*SMALL, *large) if rng.random() < 0.3 else SMALL
    base = {}
    for name in NAMES:
        with np.errstate(over="ignore"):
            dtype = DTYPES[rng.choice(["F32", "BF16", "F16", "F64"])]
            made = _numbers(rng, int(rng.choice([0, 1, 7, 33, 70])), pool).astype(dtype)
        base[name] = np.where(np.isfinite(made.astype(np.float32)), made, made.dtype.type(1))
    base[NAMES[0]] = np.append(base[NAMES[0]], base[NAMES[0]].dtype.type(0.5))  # one tensor holds something
    trained = {agent: {name: _trained(rng, array, pool) for name, array in base.items()} for agent in agents}
    drawn = {
        agent: {n: (rng.random(a.size) * (rng.random(a.size) < 0.7)).astype("f4") for n, a in base.items()}
        for agent in agents
    }
    skip = {
        name: set(rng.choice(agents, rng.integers(0, 2 + len(agents) // 3))) for name in NAMES if rng.random() < 0.3
    }
    take = {NAMES[1]: str(rng.choice(["base", *agents]))} if rng.random() < 0.2 else {}
    if len(agents) > 1 and rng.random() < 0.3 and not take:
        del trained[agents[-1]][NAMES[1]]
    weights = {agent: float(rng.choice([1, 1, 1, 0.5, 1.7, *odd])) for agent in agents}
    if abs(sum(weights.values())) < 0.05 or rng.random() < 0.5:
        weights = dict.fromkeys(agents, 1.0)
    return Case(base, trained, weights, drawn, skip, take)


def _recipe(case: Case, folder: Path, method: dict[str, Any], dtype: str) -> dict[str, Any]:
    plain = {"config.json": b"{}"}
    agents = {
        name: {
            "source": str(write_checkpoint(folder / name, tensors, config={}, files=plain)),
            "weight": case.weights[name],
            "importance": str(write_checkpoint(folder / f"{name}-importance", case.importance[name], config={})),
        }
        for name, tensors in case.agents.items()
    }
    rules = [{"tensors": name, "skip": sorted(map(str, names))} for name, names in case.skip.items() if names]
    rules += [{"tensors": name, "take": source} for name, source in case.take.items()]
    return {
        "base": str(write_checkpoint(folder / "base", case.base, config={}, files=plain)),
        "agents": agents,
        "method": method,
        "rules": rules,
        "inputs": {"missing": "base", "unchanged": "allow"},
        "output": {"dtype": dtype},
        "run": {"workers": 1},
    }


def _cast(values: Array, base: Array, dtype: str) -> Array:
    """Rounded once to the output dtype; what equals the base keeps its bits in float64, too."""
    with np.errstate(all="ignore"):
        stored = values.astype(base.dtype if dtype == "base" else np.float32)
        return np.where(values == base.astype(np.float32), base, stored) if stored.dtype == np.float64 else stored


def _taken(case: Case, name: str, dtype: str) -> Array:
    source = case.take[name]
    array = case.base[name] if source == "base" else case.agents[source].get(name, case.base[name])
    return array if dtype == "base" else array.astype(np.float32)


def _assert_close(found: Array, expected: Array, base: Array, tau: Array, what: str) -> None:
    """Within some roundings of the update, of the changes that may have cancelled in it, and of the base."""
    found, expected, base = (array.astype(float) for array in (found, expected, base))
    room = 1e-5 * (np.abs(expected - base) + np.abs(tau).max(axis=0).astype(float)) + 3e-7 * np.abs(base) + 1e-44
    assert (np.abs(found - expected) <= room).all(), what


def _assert_record(case: Case, method: dict[str, Any], record: MergeRecord, stored: dict[str, Array]) -> None:
    """Counts are exact; what is kept is the quotient of two sums, at numbers of any size."""
    inner = method
    while "then" in inner:
        inner = inner["then"]
    tau = case.tau()
    found = record.survey.agents
    counted = [found[agent].unique for agent in case.agents], [found[agent].shared for agent in case.agents]
    assert counted == reference.counts(tau, inner)
    if method["name"].startswith("ram") and method.get("scope") != "tensor":
        with np.errstate(all="ignore"):
            scales = zip(case.agents, reference.lambdas(case, method, tau), strict=True)
        for agent, scale in scales:
            assert scale > 1e6 or found[agent].scale == pytest.approx(scale, rel=1e-6, abs=1e-6), agent
    by = {name: reference.changed(rows, inner) for name, rows in tau.items()}
    regions = {
        "unique": {name: rows & (rows.sum(axis=0) == 1) for name, rows in by.items()},
        "shared": {name: rows & (rows.sum(axis=0) >= 2) for name, rows in by.items()},
        "changed": by,
    }
    with np.errstate(all="ignore"):
        moved = {name: stored[name].astype(np.float32) - case.base[name].astype(np.float32) for name in tau}
    if not all(np.isfinite(rows).all() for rows in (*moved.values(), *tau.values())):
        return
    assert record.retention is not None
    for t, agent in enumerate(case.agents):
        for region, chosen in regions.items():
            kept = reference.retention(moved, tau, t, chosen)
            size = reference.retention({name: np.abs(rows) for name, rows in moved.items()}, _abs(tau), t, chosen)
            told = getattr(record.retention[agent], region)
            assert (told is None) == (kept is None), (agent, region)
            assert kept is None or abs(told - kept) <= 1e-9 * (size or 0), (agent, region, told, kept)


def _abs(rows: dict[str, Array]) -> dict[str, Array]:
    return {name: np.abs(array) for name, array in rows.items()}


def _run(case: Case, folder: Path, method: dict[str, Any], dtype: str) -> None:
    expected, tau = reference.merge(case, method), case.tau()
    cast = {name: _cast(values, case.base[name], dtype) for name, values in expected.items()}
    recipe = _recipe(case, folder, method, dtype)
    if not all(np.isfinite(values.astype(np.float32)).all() for values in cast.values()):
        with pytest.raises(DataError):
            merge(recipe, folder / "out")
        return
    record = merge(recipe, folder / "out", full=True)
    stored = read_checkpoint(folder / "out")
    for name in case.take:
        assert_same_bits(stored[name], _taken(case, name, dtype), f"{name} taken from {case.take[name]}")
    for name, values in cast.items():
        if reference.is_exact(method):
            assert_same_bits(stored[name], values, name)
        else:
            _assert_close(stored[name], values, case.base[name], tau[name], name)
    _assert_record(case, method, record, stored)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, _flat(method))))
def test_it_merges_as_the_documents_say(
    method: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(METHODS.index(method))
    for i in range(ROUNDS):
        exact = reference.is_exact(method)
        case = _case(rng, (*LARGE, *LARGEST) if exact else LARGE, (0, -0.3) if exact else ())
        dtype = "base" if exact and rng.random() < 0.6 else "float32"
        with monkeypatch.context() as patched:
            if i % 3 == 0:
                patched.setattr(kernels, "choose", lambda *_: None)
            _run(case, tmp_path / str(i), method, dtype)


def _flat(method: dict[str, Any]) -> Iterator[Any]:
    for value in method.values():
        yield from _flat(value) if isinstance(value, dict) else (value,)
