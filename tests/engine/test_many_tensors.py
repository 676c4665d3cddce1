"""With twice as many tensors, a merge goes over their names twice as often, whichever method: nothing is quadratic.

A checkpoint with every expert a tensor of its own has 90,000. What goes over all of them for each block, such as the
hash of a question that holds a number for every tensor, then takes hours. Here it is counted how often names are
hashed, compared and written, by names that count it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import agentmerge
from agentmerge.files import header
from agentmerge.testing import make_agents, random_base

if TYPE_CHECKING:
    from pathlib import Path

FEW = 8
METHODS: dict[str, dict[str, Any]] = {
    "breadcrumbs": {"name": "breadcrumbs"},
    "breadcrumbs, rescaled": {"name": "breadcrumbs_ties", "rescale": True},
    "ties by tensor": {"name": "ties", "scope": "tensor"},
    "made, then ties by tensor": {"name": "dare", "then": {"name": "ties", "scope": "tensor"}},
    "sce, selecting": {"name": "sce", "select_topk": 0.5},
    "della, by norm": {"name": "della", "rescale": "norm"},
    "ram, the largest": {"name": "ram", "top": 0.3, "top_scope": "tensor"},
    "ram+ by tensor": {"name": "ram_plus", "scope": "tensor"},
    "ram+ by energies": {"name": "ram_plus_auto", "scope": "tensor"},
    "calibrated": {"name": "calibrate", "then": {"name": "ties", "scope": "tensor"}},
    "disentangled by tensor": {"name": "disentangle", "scope": "tensor", "coefficients": "one"},
    "by products": {"name": "model_stock"},
}


class Name(str):
    """A tensor's name that counts how often it is looked at; sorting, which takes more of many, is not counted."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Name.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return super().__eq__(other)

    def __repr__(self) -> str:
        Name.looks += 1
        return super().__repr__()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A base and three agents with so many tensors."""
    made = {}
    for tensors in (FEW, 2 * FEW):
        made[tensors] = folder = tmp_path_factory.mktemp(str(tensors))
        names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(tensors)]
        make_agents(folder, base=random_base(0, dict.fromkeys(names, (4, 32))), densities=(0.1, 0.4, 0.5))
    return made


def looks_of(folder: Path, method: dict[str, Any], out: Path) -> int:
    """How often a merge looks at names."""
    Name.looks = 0
    agents = {agent: str(folder / agent) for agent in ("code", "tool", "memory")}
    agentmerge.merge({"base": str(folder / "base"), "agents": agents, "method": method, "run": {"workers": 1}}, out)
    return Name.looks


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_names_are_looked_at_as_often_for_each_tensor(
    method: dict[str, Any], folders: dict[int, Path], tmp_path: Path, unsynced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = header.strict_json
    monkeypatch.setattr(header, "strict_json", lambda *given: {Name(n): of for n, of in parse(*given).items()})
    few, many = (looks_of(folders[n], method, tmp_path / str(n)) / n for n in (FEW, 2 * FEW))
    assert few > 50, "the names that count are not those that a merge uses"
    assert many < 1.05 * few, f"{few:.1f} looks for each of {FEW} tensors, {many:.1f} for each of {2 * FEW}"
