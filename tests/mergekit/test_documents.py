"""A file that is no single configuration is told by what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import RecipeError
from agentmerge.mergekit import convert_mergekit

if TYPE_CHECKING:
    from pathlib import Path

RAM = "merge_method: ram\nbase_model: b\nmodels: [{model: x}]\n"
CARD = f"---\ntags: [merge]\n---\n# A model\n\n```yaml\n{RAM}```\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "README.md",
            CARD,
            "a model card, or another text, expected a mergekit configuration. One stands in its code block at line 7",
        ),
        ("card.yml", CARD, "code block at line 7"),
        ("README.md", "# A model\n", "usually lies beside it, as mergekit_config.yml"),
        ("all.yml", f"{RAM}name: one\n---\n{RAM}", "holds 2 documents (---): one, without a name, expected one merge"),
        (
            "recipe.yaml",
            "base: b\nagents: {x: x}\nmethod: ram\n",
            "this is a recipe already. Merge it: agentmerge merge",
        ),
        ("moe.yml", "base_model: b\nexperts: [{source_model: x}]\n", "a mixture of experts, which is not here"),
        ("list.yml", "- 1\n", "expected a mergekit configuration with merge_method, found [1]"),
        ("empty.yml", "", "expected a mergekit configuration with merge_method, found None"),
        ("twice.yml", f"{RAM}base_model: c\n", "not valid YAML: "),
    ],
)
def test_it_is_refused_by_its_name(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RecipeError) as raised:
        convert_mergekit(tmp_path / name)
    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such mergekit configuration"):
        convert_mergekit(tmp_path / "none.yml")


@pytest.mark.parametrize("text", [f"---\n{RAM}", f"{RAM}---\n", f"\ufeff{RAM}", f"{RAM}...\n"])
def test_one_document_however_it_is_fenced(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.yml").write_text(text, encoding="utf-8")
    assert convert_mergekit(tmp_path / "one.yml").data["base"] == "b"
