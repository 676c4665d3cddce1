"""The shipped agents are whole, small, and merge to the same numbers with every method."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import agentmerge
from agentmerge.demo.shipped import AGENTS, NAMES, folder, recipe
from tests.demo import counting

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN = json.loads(counting.GOLDEN.read_text())
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("name", ["base", *NAMES])
def test_every_folder_is_an_ordinary_small_checkpoint(name: str) -> None:
    files = {path.name: path for path in folder(name).iterdir()}
    assert set(files) == FILES
    assert sum(path.stat().st_size for path in files.values()) <= 4_000_000
    config = json.loads(files["config.json"].read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config.get("dtype") or config.get("torch_dtype")) == "bfloat16"
    tokenizer = json.loads(files["tokenizer_config.json"].read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"  # the one that transformers 4 and 5 both know
    assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]  # version 4 adds what a Llama refuses


def test_all_together_are_small_and_have_a_card() -> None:
    assert sum(path.stat().st_size for path in AGENTS.rglob("*") if path.is_file()) <= 20_000_000
    card = (AGENTS / "CARD.md").read_text()
    assert "Apache-2.0" in card
    assert all(name in card for name in ("base", *NAMES))


def test_the_agents_are_uneven_as_in_the_paper() -> None:
    seen = agentmerge.probe(recipe({"name": "ram_plus"}, NAMES)).survey.agents
    densities = sorted(agent.density for agent in seen.values())
    assert densities[0] < 0.12
    assert densities[-1] > 0.25
    assert counting.changed() == GOLDEN["changed"]


LONG = {"wudi", "esm_vit"}
"""Three hundred steps of Adam on every matrix: a quarter of a minute; `esm` over again, but for a scale."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(method, marks=pytest.mark.slow) if method in LONG else method for method in counting.METHODS],
)
def test_every_method_merges_them_to_the_same_counts(method: str, tmp_path: Path) -> None:
    counts, expected = counting.merged(method, tmp_path), GOLDEN["methods"][method]
    if method in counting.WHOLE:  # another BLAS or LAPACK may round a few elements otherwise
        assert counts["changed"] == pytest.approx(expected["changed"], rel=1e-3)
    else:
        assert counts == expected


def test_the_golden_counts_are_of_all_methods() -> None:
    assert set(GOLDEN["methods"]) == set(counting.METHODS)
