"""Checkpoints as untidy as the ones people have, and a merge of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.tensors import DTYPES
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.engine.findings import CheckRecord
    from agentmerge.record import MergeRecord
    from agentmerge.tensors import Array

ROWS, WIDTH = 16, 12
EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
MLP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "vocab_size": ROWS,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
    "dtype": "bfloat16",
}
BF16 = DTYPES["BF16"]


def model(seed: int = 0, rows: int = ROWS, dtype: str = "BF16") -> dict[str, Array]:
    """A small untied model."""
    rng = np.random.default_rng(seed)
    shapes = {EMBED: (rows, WIDTH), MLP: (20, WIDTH), DOWN: (WIDTH, 20), NORM: (WIDTH,), HEAD: (rows, WIDTH)}
    return {name: rng.normal(0, 0.5, shape).astype(np.float32).astype(DTYPES[dtype]) for name, shape in shapes.items()}


def trained(tensors: Mapping[str, Array], seed: int, density: float = 0.3) -> dict[str, Array]:
    """An agent: some elements of each float tensor moved by an eighth, which every dtype here can hold."""
    rng = np.random.default_rng(seed)
    moved = {}
    for name, array in tensors.items():
        if array.dtype.kind in "iub":
            moved[name] = array.copy()
            continue
        step = np.where(rng.random(array.shape) < density, np.float32(0.125), np.float32(0))
        moved[name] = (array.astype(np.float32) + step).astype(array.dtype)
    return moved


def tokenizer(tokens: Mapping[str, int] | list[str], added: Mapping[str, int] | None = None) -> dict[str, bytes]:
    """tokenizer.json with these tokens."""
    ids = tokens if not isinstance(tokens, list) else {token: i for i, token in enumerate(tokens)}
    entries = [{"id": i, "content": token, "special": True} for token, i in (added or {}).items()]
    content = {"model": {"type": "BPE", "vocab": dict(ids)}, "added_tokens": entries}
    return {"tokenizer.json": json.dumps(content).encode(), "tokenizer_config.json": b"{}"}


def words(count: int) -> list[str]:
    return [f"w{i}" for i in range(count)]


@dataclass
class Case:
    """A base and agents in a folder, and what a merge of them gives."""

    folder: Path
    agents: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)

    def put(
        self, name: str, tensors: Mapping[str, Array], config: Mapping[str, Any] | None = None, **files: bytes
    ) -> Path:
        """Write a source; `files` as {"tokenizer.json": b"..."} by way of **."""
        path = write_checkpoint(
            self.folder / name, tensors, config=CONFIG if config is None else {**CONFIG, **config}, files=files
        )
        if name != "base":
            self.agents[name] = str(path)
        return path

    def recipe(self, method: Any = "ram", **sections: Any) -> dict[str, Any]:
        inputs = {**self.inputs, **sections.pop("inputs", {})}
        return {
            "base": str(self.folder / "base"),
            "agents": dict(self.agents),
            "method": method,
            "inputs": inputs,
            **sections,
        }

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def merge(self, method: Any = "ram", **sections: Any) -> MergeRecord:
        return agentmerge.merge(self.recipe(method, **sections), self.out, overwrite=True)

    def check(self, **sections: Any) -> CheckRecord:
        return agentmerge.check(self.recipe(**sections))

    def refused(self, *parts: str, **sections: Any) -> str:
        """A merge says so, and OUT does not appear."""
        shutil.rmtree(self.out, ignore_errors=True)
        with pytest.raises(agentmerge.MergeError) as caught:
            self.merge(**sections)
        for part in parts:
            assert part in str(caught.value), str(caught.value)
        assert not self.out.exists()
        return str(caught.value)

    def refused_early(self, *parts: str, **sections: Any) -> str:
        """As `refused`, and `check` tells the same before anything is read."""
        message = self.refused(*parts, **sections)
        record = self.check(**sections)
        assert not record.ok
        assert not (self.folder / ".out.agentmerge").exists()
        return message

    @property
    def result(self) -> dict[str, Array]:
        return read_checkpoint(self.out)

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "config.json").read_bytes())
        return found


@pytest.fixture
def case(tmp_path: Path, unsynced: None) -> Case:
    return Case(tmp_path)


def ram(base: Array, *agents: Array) -> Array:
    """RAM by its definition, in the base's dtype."""
    ours = base.astype(np.float32)
    tau = np.stack([agent.astype(np.float32) - ours for agent in agents])
    changed = np.abs(tau) > 1e-5
    number = np.maximum(changed.sum(axis=0), 1)
    moved = ours + np.where(changed, tau, 0).sum(axis=0, dtype=np.float32) / number.astype(np.float32)
    return np.where(changed.any(axis=0), moved, ours).astype(base.dtype)


def same(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
