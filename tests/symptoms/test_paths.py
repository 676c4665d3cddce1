"""Where a path is looked for: "~" is the home folder, everything else is relative to the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import agentmerge
from agentmerge import Recipe
from agentmerge.cli.commands import at_home
from agentmerge.errors import SourceNotFoundError
from agentmerge.files.paths import expanded, expanded_text
from agentmerge.testing import make_agents

if TYPE_CHECKING:
    from agentmerge.testing import Sources

RECIPE = "base: {0}/base\nagents: {{code: {0}/code}}\nmethod: ram\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A base and agents in the folder in/ of somebody's home."""
    made = make_agents(tmp_path / "in")
    monkeypatch.setenv("HOME", str(tmp_path))
    return made


def test_the_home_folder_is_expanded_in_recipes_in_python_and_of_words(home: Sources, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format("~/in"))
    recipe = Recipe.load("~/recipe.yaml")
    assert (recipe.base, recipe.agents["code"].source) == (str(home.base), str(home.agents["code"]))
    agentmerge.merge(recipe, "~/out")
    assert agentmerge.MergeRecord.load("~/out").output.shards == 1
    agentmerge.pack("~/in/base", "~/in/code", "~/d.safetensors")
    agentmerge.apply("~/in/base", "~/d.safetensors", "~/again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "d.safetensors", "in", "out", "recipe.yaml"]


@pytest.mark.parametrize("word", ["~/in", "--out=~/in", "code=~/in", "--agent=code=~/in", "~"])
def test_a_word_of_a_command_line_is_expanded_where_no_shell_did(home: Sources, tmp_path: Path, word: str) -> None:
    assert at_home(word) == word.replace("~", str(tmp_path))


@pytest.mark.parametrize("word", ["owner/model@a~b", "a~/in", "x/~/in", "~nobody-of-that-name/in", "--set=a=b=~/in"])
def test_other_words_stay_as_they_are(home: Sources, word: str) -> None:
    assert at_home(word) == word
    assert expanded_text(word) == word
    assert expanded(word) == Path(word)


def test_a_source_beside_the_recipe_that_is_run_from_elsewhere_is_told(
    home: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format("in"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(home.base)
    with pytest.raises(SourceNotFoundError) as caught:
        agentmerge.merge(tmp_path / "recipe.yaml", tmp_path / "out")
    told = f"It lies beside the recipe, as {tmp_path}/in/base, but the paths in a recipe are relative to the working"
    assert told in str(caught.value)
    assert "hf download" not in str(caught.value)
    findings = agentmerge.check(tmp_path / "recipe.yaml").findings
    assert any(f"It lies beside the recipe, as {tmp_path}/in/base" in finding.todo for finding in findings)
    monkeypatch.chdir(tmp_path)
    agentmerge.merge("recipe.yaml", "out")
