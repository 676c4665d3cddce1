"""What a program calls takes a recipe in any form, and importing it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import agentmerge
from agentmerge import Recipe, merge, probe
from agentmerge.engine.local import LocalRunner
from agentmerge.errors import MergeError, RecipeError, SourceNotFoundError
from agentmerge.testing import assert_same_tensors, read_checkpoint

if TYPE_CHECKING:
    from agentmerge.testing import Sources

pytestmark = pytest.mark.usefixtures("unsynced")
LAZY = """
import sys
import agentmerge
heavy = {"numpy", "numba", "torch", "pydantic", "yaml", "huggingface_hub", "ml_dtypes"} & set(sys.modules)
assert not heavy, heavy
assert "merge" in dir(agentmerge)
"""

NO_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["ray"] = sys.modules["triton"] = None
from pathlib import Path
from agentmerge import merge
from agentmerge.testing import make_agents
sources = make_agents(Path(sys.argv[1]) / "in")
merge(sources.recipe("ram+"), Path(sys.argv[1]) / "out")
"""


def test_importing_the_package_imports_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LAZY], check=True)


def test_a_merge_needs_no_torch(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", NO_TORCH, str(tmp_path)], check=True)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_every_public_name_is_there() -> None:
    for name in agentmerge.__all__:
        assert getattr(agentmerge, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'mrege'"):
        agentmerge.mrege  # noqa: B018


def test_a_recipe_may_be_a_mapping_a_file_or_a_value(tiny: Sources, tmp_path: Path) -> None:
    data = tiny.recipe("ram+")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    forms = {"mapping": data, "text": str(path), "path": path, "recipe": Recipe.parse(data)}
    tensors = []
    for name, form in forms.items():
        merge(form, str(tmp_path / name))
        tensors.append(read_checkpoint(tmp_path / name))
        assert probe(form).survey == probe(data).survey
    for other in tensors[1:]:
        assert_same_tensors(other, tensors[0])


def test_a_relative_out_is_taken_from_the_current_folder(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    merge(tiny.recipe("ram"), "a/b/out")
    assert (tmp_path / "a" / "b" / "out" / "config.json").exists()


def test_a_recipe_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such recipe file"):
        merge(tmp_path / "none.yaml", tmp_path / "out")


def test_a_source_that_is_not_there_is_told_with_its_role(tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe("ram")
    recipe["agents"]["code"] = str(tmp_path / "gone")
    with pytest.raises(SourceNotFoundError, match=r"agent 'code': .*gone.*no such folder"):
        merge(recipe, tmp_path / "out")
    with pytest.raises(MergeError, match="agent 'code'"):
        probe(recipe)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_watch_is_told_of_every_byte(tiny: Sources, tmp_path: Path) -> None:
    told: list[tuple[str, int, list[int]]] = []

    class Notes:
        def begin(self, phase: str, total: int, **_: float) -> None:
            told.append((phase, total, []))

        def advance(self, nbytes: int, **_: float) -> None:
            told[-1][2].append(nbytes)

    merge(tiny.recipe("ram+", run={"block_size": 4096}), tmp_path / "out", watch=Notes())
    assert [phase for phase, _, _ in told] == ["fold 0", "map"]
    for _, total, parts in told:
        assert sum(parts) == total > 0
        assert len(parts) > 3


def test_a_runner_may_be_given(tiny: Sources, tmp_path: Path) -> None:
    merge(tiny.recipe("ram+"), tmp_path / "a", runner=LocalRunner())
    merge(tiny.recipe("ram+"), tmp_path / "b")
    assert_same_tensors(read_checkpoint(tmp_path / "a"), read_checkpoint(tmp_path / "b"))


def test_paths_may_be_given_as_paths(tiny: Sources, tmp_path: Path) -> None:
    agents = {name: Path(source) for name, source in tiny.agents.items()}
    record = merge({"base": Path(tiny.base), "agents": agents, "method": "ram"}, tmp_path / "out")
    assert record.recipe["base"] == str(tiny.base)


def test_several_settings_are_swept_together(tiny: Sources, tmp_path: Path) -> None:
    fields = {"rescale": [0, 0.5], "clip": [1, 2]}
    records = agentmerge.sweep_all(tiny.recipe("ram+"), fields, tmp_path / "all")
    assert list(records) == ["rescale=0,clip=1", "rescale=0,clip=2", "rescale=0.5,clip=1", "rescale=0.5,clip=2"]
    methods = [record.recipe["method"] for record in records.values()]
    assert [(method["rescale"], method["clip"]) for method in methods] == [(0, 1), (0, 2), (0.5, 1), (0.5, 2)]


@pytest.mark.parametrize("values", [[1, 1], [1, "1"], [0.5, "0.5"]], ids=str)
def test_a_value_that_is_swept_twice_is_refused_not_dropped(
    tiny: Sources, tmp_path: Path, values: list[object]
) -> None:
    with pytest.raises(RecipeError, match="twice, expected different values"):
        agentmerge.sweep(tiny.recipe("ram+"), "rescale", values, tmp_path / "all")
