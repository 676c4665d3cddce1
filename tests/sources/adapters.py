"""LoRA adapters for tests: their files as PEFT writes them, and what they make of a base in float64."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

PEFT = "base_model.model."


def matrices(seed: int, outputs: int, inputs: int, rank: int) -> tuple[Array, Array]:
    """A [rank, inputs] and B [outputs, rank], float32."""
    rng = np.random.default_rng(seed)
    a = rng.normal(0, 0.2, (rank, inputs)).astype(np.float32)
    return a, rng.normal(0, 0.2, (outputs, rank)).astype(np.float32)


def lora(module: str, a: Array, b: Array) -> dict[str, Array]:
    return {f"{PEFT}{module}.lora_A.weight": a, f"{PEFT}{module}.lora_B.weight": b}


def embedded(module: str, a: Array, b: Array) -> dict[str, Array]:
    return {f"{PEFT}{module}.lora_embedding_A": a, f"{PEFT}{module}.lora_embedding_B": b}


def put_adapter(folder: Path, tensors: Mapping[str, Array], **config: Any) -> Path:
    """An adapter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors", {"format": "pt"})
    content = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


def summed(base: Array, a: Array, b: Array, scale: float, *, turned: bool = False) -> Array:
    """The definition in float64."""
    product = b.astype(np.float64) @ a.astype(np.float64)
    return base.astype(np.float64) + scale * (product.T if turned else product)
