"""The shipped agents are whole, small, and merge to the same numbers with every method."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from demo.shipped import AGENTS, NAMES, TRIO, folder, recipe

import agentmerge
from agentmerge.methods.registry import known_methods

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def settings(name: str) -> dict[str, object]:
    """What a method needs beside its name."""
    return {"name": name, **({"agent": "code"} if name == "region" else {})}


def counted(out: Path) -> dict[str, int]:
    """How many stored numbers are not the base's, and a sum of all their bits."""
    from safetensors.numpy import load_file

    base, merged = load_file(folder("base") / "model.safetensors"), load_file(out / "model.safetensors")
    pairs = [(base[name].view(np.uint16), merged[name].view(np.uint16)) for name in sorted(base)]
    return {
        "changed": sum(int((a != b).sum()) for a, b in pairs),
        "bits": sum(int(b.astype(np.uint64).sum()) for _, b in pairs),
    }


@pytest.mark.parametrize("name", ["base", *NAMES])
def test_every_folder_is_an_ordinary_small_checkpoint(name: str) -> None:
    files = {path.name: path for path in folder(name).iterdir()}
    assert set(files) == FILES
    assert sum(path.stat().st_size for path in files.values()) <= 4_000_000
    config = json.loads(files["config.json"].read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config.get("dtype") or config.get("torch_dtype")) == "bfloat16"


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
    assert {name: agent.changed for name, agent in seen.items()} == GOLDEN["changed"]


@pytest.mark.parametrize("name", sorted(set(GOLDEN["methods"]) | (set(known_methods()) - {"fisher"})))
def test_every_method_merges_them_to_the_same_counts(name: str, tmp_path: Path) -> None:
    """Fisher needs importance, which takes torch to measure. Floating point sums may differ in a few last bits."""
    found = agentmerge.merge(recipe(settings(name), TRIO), tmp_path / "out")
    assert set(found.survey.agents) == set(TRIO)
    counts = counted(tmp_path / "out")
    if name == "wudi":
        assert counts["changed"] == pytest.approx(GOLDEN["methods"][name]["changed"], rel=1e-3)
    else:
        assert counts == GOLDEN["methods"][name]
