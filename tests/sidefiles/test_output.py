"""Everything beside the shards: the base's side files, a config that tells the truth, a card, an index."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agentmerge import Recipe
from agentmerge.files.layout import INDEX, plan_layout
from agentmerge.sidefiles.output import output_facts, output_files
from agentmerge.sources.source import Folder
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from pathlib import Path

SPECS = [TensorSpec("a", "F32", (10,)), TensorSpec("b", "BF16", (3,)), TensorSpec("c", "I64", (99,))]
RECIPE = Recipe.parse({"base": "org/base", "agents": {"tool": "org/tool", "code": "./code"}, "method": "ram"})


def base_in(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    (path / "tokenizer.json").write_text("base")
    (path / "notes.txt").write_text("anybody's")
    return path


def test_the_files_are_the_bases_with_a_true_config_and_a_card(tmp_path: Path) -> None:
    files = output_files(RECIPE, plan_layout(SPECS, 1 << 20), Folder(base_in(tmp_path / "base"), whole=True))
    assert sorted(files) == ["README.md", "config.json", "notes.txt", "tokenizer.json"]
    assert json.loads(files["config.json"]) == {"torch_dtype": "float32", "dtype": "float32"}
    assert b"# Merged agents: code, tool" in files["README.md"]
    assert b"- org/tool" in files["README.md"]


def test_a_single_file_brings_only_well_known_files(tmp_path: Path) -> None:
    files = output_files(RECIPE, plan_layout(SPECS, 1 << 20), Folder(base_in(tmp_path / "base"), whole=False))
    assert sorted(files) == ["README.md", "config.json", "tokenizer.json"]


def test_tokenizer_config_changes_and_index_are_taken_in(tmp_path: Path) -> None:
    donor = tmp_path / "donor"
    donor.mkdir()
    (donor / "tokenizer.json").write_text("donor")
    base, layout = Folder(base_in(tmp_path / "base"), whole=True), plan_layout(SPECS, 1)
    files = output_files(RECIPE, layout, base, donor, {"vocab_size": 7})
    assert files["tokenizer.json"] == b"donor"
    assert json.loads(files["config.json"])["vocab_size"] == 7
    assert json.loads(files[INDEX])["weight_map"]["b"] == "model-00002-of-00003.safetensors"


def test_the_facts_are_those_of_the_layout() -> None:
    layout = plan_layout(SPECS, 1)
    facts = output_facts(layout, "nearest")
    assert (facts.dtype, facts.rounding, facts.shards) == ("float32", "nearest", 3)
    assert facts.bytes == sum(shard.size for shard in layout.shards)
    assert output_facts(plan_layout(SPECS[2:], 1), "nearest").dtype == "none"
