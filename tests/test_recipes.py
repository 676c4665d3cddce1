"""The recipes of the paper parse and plan, hub ids replaced by local folders; so does every point of its grids."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from agentmerge.cli import app
from agentmerge.recipe import Recipe
from agentmerge.testing import make_agents, read_checkpoint, write_checkpoint

ROOT = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(ROOT.glob("*/*.yaml"))
GRIDS = yaml.safe_load((ROOT / "grids.yaml").read_text(encoding="utf-8"))
PAPER = {"ram", "ram_plus", "task_arithmetic", "fisher", "ties", "dare", "wudi"}


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def points(method: str) -> list[dict[str, float]]:
    """Every combination of a method's fields."""
    fields = GRIDS["methods"][method]
    return [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]


@pytest.mark.parametrize("path", RECIPES, ids=named)
def test_a_dry_run_finds_everything_where_the_hub_ids_are_local_folders(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.load(path)
    sources = make_agents(tmp_path / "made", agents=len(recipe.agents))
    Path(recipe.base).parent.mkdir(parents=True)
    sources.base.rename(recipe.base)
    for agent, made in zip(recipe.agents.values(), sources.agents.values(), strict=True):
        Path(agent.source).parent.mkdir(parents=True, exist_ok=True)
        made.rename(agent.source)
        if agent.importance:
            shapes = {name: tensor.shape for name, tensor in read_checkpoint(Path(agent.source)).items()}
            importance = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
            write_checkpoint(Path(agent.importance), importance)
    ran = CliRunner().invoke(app, ["merge", str(path), "--out", "merged", "--dry-run"])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    assert f"base    {recipe.base}" in ran.output
    assert not Path("merged").exists()


def test_every_method_of_the_paper_has_a_recipe_for_the_three_agents():
    recipes = [Recipe.load(path) for path in RECIPES if path.parent.name == "qwen2.5-7b"]
    assert {recipe.method.name for recipe in recipes} >= PAPER
    assert {tuple(recipe.agents) for recipe in recipes} == {("code", "tool", "memory")}
    assert {recipe.method.then.name for recipe in recipes if recipe.method.name == "dare"} == {
        "task_arithmetic",
        "ties",
    }


def test_an_agent_has_one_source_in_all_recipes_of_a_base():
    sources: dict[tuple[str, str], set[str]] = {}
    for recipe in map(Recipe.load, RECIPES):
        for name, agent in recipe.agents.items():
            sources.setdefault((recipe.base, name), set()).add(agent.source)
    assert len(sources) == 8
    assert all(len(found) == 1 for found in sources.values()), sources


@pytest.mark.parametrize("method", GRIDS["methods"])
def test_every_point_of_a_grid_is_a_recipe(method):
    paths = [path for path in RECIPES if yaml.safe_load(path.read_text())["method"]["name"] == method]
    assert paths
    for path, point in product(paths, points(method)):
        data = yaml.safe_load(path.read_text())
        data["method"] |= point
        parsed = Recipe.parse(data).method.model_dump()
        assert {field: parsed[field] for field in point} == point


def test_every_recipe_with_a_grid_stands_on_a_point_of_it():
    for path in RECIPES:
        method = yaml.safe_load(path.read_text())["method"]
        if method["name"] in GRIDS["methods"]:
            assert any(method | point == method for point in points(method["name"])), path


def test_the_grids_have_as_many_points_as_the_table():
    assert {method: len(points(method)) for method in GRIDS["methods"]} == {
        "task_arithmetic": 6,
        "fisher": 6,
        "ties": 18,
        "dare": 9,
    }
    assert (GRIDS["importance"]["examples"][0], GRIDS["importance"]["examples"][-1]) == (256, 2048)
