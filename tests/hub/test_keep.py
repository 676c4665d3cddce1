"""What the base must keep as a model on the hub: fetched as it is, recorded by its commit, no parent of the merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from agentmerge import merge, push
from agentmerge.alike.measured import measured_on
from agentmerge.engine.estimate import fetch_bytes
from agentmerge.engine.preflight import check, planned_from_afar
from agentmerge.errors import AlignmentError, RecipeError
from agentmerge.files.save import save
from agentmerge.recipe import Recipe
from agentmerge.sources.opening import opened
from agentmerge.testing import random_gram, read_checkpoint, write_checkpoint
from tests.hub.repo import WRITER

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.testing import Sources
    from tests.hub.server import HubServer

pytestmark = [
    pytest.mark.usefixtures("unsynced"),
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # of huggingface_hub, about httpx
]


@pytest.fixture
def keep(on_hub: Sources, hub: HubServer, tmp_path: Path) -> Path:
    rng, tensors = np.random.default_rng(0), read_checkpoint(on_hub.base)
    layers = {name: array.shape[-1] for name, array in tensors.items() if name.endswith("proj.weight")}
    save(tmp_path / "keep", {name: random_gram(rng, (side, side)) for name, side in layers.items()})
    (tmp_path / "keep" / "grams.json").write_text("{}")
    hub.add("org/keep", tmp_path / "keep")
    return tmp_path / "keep"


def recipe(sources: Sources, keep: str) -> dict[str, Any]:
    agents = {name: f"org/{name}" for name in sources.agents}
    return {"base": "org/base", "agents": agents, "method": "wudi_auto", "keep": keep}


def test_it_is_looked_at_from_afar_and_fetched(on_hub: Sources, keep: Path, tmp_path: Path) -> None:
    given = recipe(on_hub, "org/keep")
    told = {one.where: one for one in check(Recipe.parse(given)).findings}
    size = (keep / "model.safetensors").stat().st_size
    assert (told["keep"].severity, f"fetches {size:,} bytes" in told["keep"].found) == ("note", True)
    with planned_from_afar(Recipe.parse(given)) as plan:
        assert fetch_bytes(plan) == size + 4 * (on_hub.base / "model.safetensors").stat().st_size
        assert all(job.keep for job in plan.jobs if job.name.endswith("proj.weight"))
    record = merge(given, tmp_path / "out")
    assert len(record.sources["keep"]["commit"]) == 40
    local = on_hub.recipe("wudi_auto", keep=str(keep))
    merge(local, tmp_path / "local")
    found, expected = read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "local")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_what_was_measured_on_an_agent_is_told_once_the_numbers_are_here(
    on_hub: Sources, keep: Path, tmp_path: Path
) -> None:
    with opened(None, str(on_hub.agents["code"])) as code:
        save(tmp_path / "of-code", read_checkpoint(keep), metadata=measured_on(code.weights))
    given = recipe(on_hub, str(tmp_path / "of-code"))
    assert check(Recipe.parse(given)).ok
    told = r"keep: .*of-code was measured on agent 'code' \(org/code\), expected the base \(org/base\)\."
    with pytest.raises(RecipeError, match=told):
        merge(given, tmp_path / "out")
    assert [finding.where for finding in check(Recipe.parse(given)).findings if finding.severity == "error"] == ["keep"]
    assert not (tmp_path / "out").exists()


def test_what_a_merge_is_put_onto_is_fetched_too(on_hub: Sources, hub: HubServer, keep: Path, tmp_path: Path) -> None:
    hub.add("org/onto", write_checkpoint(tmp_path / "onto", read_checkpoint(on_hub.base)))
    with planned_from_afar(Recipe.parse(recipe(on_hub, "org/keep"))) as plan:
        plain = fetch_bytes(plan)
    with planned_from_afar(Recipe.parse({**recipe(on_hub, "org/keep"), "onto": "org/onto"})) as plan:
        assert fetch_bytes(plan) == plain + (tmp_path / "onto" / "model.safetensors").stat().st_size


def test_it_is_no_parent_on_the_card_whose_recipe_has_it(on_hub: Sources, keep: Path, tmp_path: Path) -> None:
    merge(recipe(on_hub, "org/keep"), tmp_path / "out")
    _, metadata, page = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(metadata)["base_model"] == ["org/base", *(f"org/{name}" for name in sorted(on_hub.agents))]
    assert "keep: org/keep" in page
    assert "keep: 0.1" in page


@pytest.mark.parametrize("kind", ["keep", "importance"])
def test_a_merge_that_read_it_can_be_pushed(
    kind: str, on_hub: Sources, hub: HubServer, keep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITER)
    (on_hub.base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    hub.add("org/base", on_hub.base)
    given = recipe(on_hub, "org/keep")
    if kind == "importance":
        importance = {name: abs(array) for name, array in read_checkpoint(on_hub.base).items()}
        hub.add("org/importance", write_checkpoint(tmp_path / "importance", importance, config={}))
        agents = {name: {"source": source, "importance": "org/importance"} for name, source in given["agents"].items()}
        given = {"base": "org/base", "agents": agents, "method": {"name": "ram", "shared": "winner"}}
    record = merge(given, tmp_path / "out")
    assert any("commit" in source for name, source in record.sources.items() if kind in name)
    models = ["org/base", *(f"org/{name}" for name in sorted(on_hub.agents))]
    assert push(tmp_path / "out", "ada/merge").base_models == models


def test_a_model_in_its_place_is_told_before_anything_is_fetched(
    on_hub: Sources, hub: HubServer, tmp_path: Path
) -> None:
    with pytest.raises(AlignmentError, match=r"keep \(org/code\) has shape"):
        merge(recipe(on_hub, "org/code"), tmp_path / "out")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
