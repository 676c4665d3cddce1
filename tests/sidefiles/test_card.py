"""The model card is one that the hub accepts, whatever the base's card and the paths hold."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agentmerge.sidefiles.card import card_metadata, hub_ids, model_card

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from huggingface_hub import ModelCard

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = {"base": "Qwen/Qwen2.5-7B", "seed": 0, "method": {"name": "ram_plus", "threshold": 1e-05}}


def card_of(base: str, agents: dict[str, str], inherited: dict[str, Any] | None = None) -> Any:
    content = model_card("Merged agents", base, agents, "ram_plus", RECIPE, inherited or {}).decode()
    card = ModelCard(content)
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["merge", "agentmerge"]
    return card


def test_ids_on_the_hub_become_the_base_models_of_a_merge() -> None:
    card = card_of("Qwen/Qwen2.5-7B", {"code": "org/coder@main", "tool": "hf://org/tool", "again": "org/coder"})
    assert card.data.base_model == ["Qwen/Qwen2.5-7B", "org/coder", "org/tool"]
    assert card.data.to_dict()["base_model_relation"] == "merge"


def test_paths_of_this_machine_are_no_base_models() -> None:
    card = card_of("/data/models/base", {"code": "./runs/coder", "tool": "../x/y/z"})
    assert "base_model" not in card.data.to_dict()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/name", ["org/name"]),
        ("hf://org/name@v1.0", ["org/name"]),
        ("org/na.me-1_x", ["org/na.me-1_x"]),
        ("/org/name", []),
        ("./org/name", []),
        ("name", []),
        ("a/b/c", []),
        ("~/x", []),
        ("org/", []),
    ],
)
def test_what_is_an_id_on_the_hub(source: str, expected: list[str]) -> None:
    assert hub_ids([source]) == expected


def test_the_licence_and_language_of_the_base_go_on_and_nothing_else() -> None:
    inherited = {
        "license": "other",
        "license_name": "qwen",
        "license_link": "https://x/LICENSE",
        "language": ["en", "de"],
    }
    card = card_of("a/b", {"c": "d/e"}, {**inherited, "pipeline_tag": "x", "datasets": ["y"]})
    found = card.data.to_dict()
    assert {key: found[key] for key in inherited} == inherited
    assert "pipeline_tag" not in found
    assert "datasets" not in found


@pytest.mark.parametrize("name", ["a|b", "a`b", "a\nb", "{{ evil }}", "<script>", "---", "日本"])
def test_hostile_paths_stay_text(name: str) -> None:
    card = card_of(f"/base/{name}", {"code": f"/agents/{name}"})
    rows = [line for line in card.content.splitlines() if line.startswith(("| base |", "| code |"))]
    assert len(rows) == 2
    assert all(row.replace("\\|", "").count("|") == 3 for row in rows)


def test_the_card_holds_the_recipe_as_yaml() -> None:
    card = card_of("a/b", {"c": "d/e"})
    block = card.content.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(block) == {**RECIPE, "method": {"name": "ram_plus", "threshold": 1e-05}}


def test_one_agent_and_several_are_counted_in_words() -> None:
    assert "merged from 1 agent of one base" in card_of("a/b", {"c": "d/e"}).content
    assert "merged from 2 agents of one base" in card_of("a/b", {"c": "d/e", "f": "g/h"}).content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("# no metadata", {}),
        ("---\nlicense: mit\n---\n# x", {"license": "mit"}),
        ("---\r\nlicense: mit\r\n---\r\n# x", {"license": "mit"}),
        ("---\n- a list\n---\n", {}),
        ("---\nlicense: [unclosed\n---\n", {}),
        ("---\nlicense: 2024-13-45\n---\n", {}),
        ("---\n" + "[" * 700 + "\n---\n", {}),
        ("---\nlicense: mit\n", {}),
    ],
    ids=range(9),
)
def test_the_bases_card_is_read_or_passed_over(tmp_path: Path, text: str | None, expected: dict[str, Any]) -> None:
    if text is not None:
        (tmp_path / "README.md").write_bytes(text.encode())
    assert card_metadata(tmp_path) == expected


def test_a_card_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"---\n\xff\xfe\n---\n")
    assert card_metadata(tmp_path) == {}
