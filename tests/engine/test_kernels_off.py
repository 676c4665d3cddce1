"""Merges are the same, bytes and record, with the kernels switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import kernels, merge, probe
from agentmerge.testing import (
    CONTRACT_DTYPES,
    Sources,
    assert_same_tensors,
    make_agents,
    random_base,
    random_gram,
    random_importance,
    read_checkpoint,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

STOCHASTIC = {"rounding": "stochastic"}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ram_plus": ({"name": "ram_plus"}, {}),
    "auto": ({"name": "ram_plus", "rescale": "auto", "shared": "elect"}, STOCHASTIC),
    "importance": ({"name": "ram_plus", "shared": "importance"}, {"dtype": "float16"}),
    "linear": ({"name": "linear"}, STOCHASTIC),
    "ties": ({"name": "ties", "density": 0.3}, {}),
    "dare_ties": ({"name": "dare", "then": {"name": "ties", "density": 0.8, "scope": "tensor"}}, {}),
    "dare_ram": ({"name": "dare", "density": 0.4, "then": "ram_plus"}, STOCHASTIC),
    "fisher": ({"name": "fisher", "normalize": True}, {"dtype": "float32"}),
    "calibrate": ({"name": "calibrate", "then": {"name": "dare", "then": "ram"}}, STOCHASTIC),
    "region": ({"name": "region", "agent": "tool", "keep": "shared"}, {}),
    "wudi": ({"name": "wudi", "steps": 2}, {}),
    "resmerge": ({"name": "resmerge"}, {}),
    "disentangle": ({"name": "disentangle", "then": {"name": "dare", "then": "ram_plus"}}, STOCHASTIC),
    "regmean": ({"name": "regmean"}, {}),
    "svc": ({"name": "svc", "then": {"name": "dare", "density": 0.4, "then": "ram_plus"}}, STOCHASTIC),
}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sources, dict[str, Any]]:
    """Agents of several dtypes, with weights and importance."""
    folder, rng = tmp_path_factory.mktemp("agents"), np.random.default_rng(5)
    base: Mapping[str, Array] = random_base(0, dtypes=CONTRACT_DTYPES)
    sources = make_agents(folder, base=base)
    entries = {}
    for name, path in sources.agents.items():
        importance = {tensor: random_importance(rng, array.shape) for tensor, array in base.items()}
        stored = write_checkpoint(folder / f"{name}.importance", importance, config={})
        sides = {tensor: (array.shape[-1],) * 2 for tensor, array in base.items() if tensor.endswith("proj.weight")}
        grams = {tensor: random_gram(rng, shape) for tensor, shape in sides.items()}
        beside = {"importance": str(stored), "grams": str(write_checkpoint(folder / f"{name}.grams", grams, config={}))}
        entries[name] = {"source": str(path), "weight": 0.9, **beside}
    return sources, entries


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("recipe", RECIPES)
def test_kernels_change_nothing(
    recipe: str, agents: tuple[Sources, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources, entries), (method, output) = agents, RECIPES[recipe]
    plain = {**sources.recipe(method, output=output, run={"block_size": 16384}), "agents": entries}
    fast = merge(plain, tmp_path / "fast")
    monkeypatch.setattr(kernels, "choose", lambda *_: None)
    slow = merge(plain, tmp_path / "slow")
    assert_same_tensors(read_checkpoint(tmp_path / "fast"), read_checkpoint(tmp_path / "slow"))
    assert fast.model_dump(exclude={"timing"}) == slow.model_dump(exclude={"timing"})


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("method", ["ram_plus", {"name": "ties", "density": 0.3}], ids=["ram_plus", "ties"])
def test_kernels_change_no_answer_of_a_full_probe(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = make_agents(tmp_path / "sources", base=random_base(1))
    plain = sources.recipe(method, run={"block_size": 16384})
    fast, merged = probe(plain, full=True), merge(plain, tmp_path / "fast", full=True)
    monkeypatch.setattr(kernels, "choose", lambda *_: None)
    slow, defined = probe(plain, full=True), merge(plain, tmp_path / "slow", full=True)
    assert fast.findings is not None
    assert fast.model_dump(exclude={"timing"}) == slow.model_dump(exclude={"timing"})
    assert merged.retention is not None
    assert merged.model_dump(exclude={"timing"}) == defined.model_dump(exclude={"timing"})
