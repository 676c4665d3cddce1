"""Adapters that PEFT itself trains and saves are read as PEFT itself merges them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import BASE, Role
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import assert_source_contract, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
LLAMA: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPT2: dict[str, Any] = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
LORAS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "rslora": {"target_modules": "all-linear", "use_rslora": True, "r": 6, "lora_alpha": 5},
    "patterns": {
        "target_modules": ["q_proj", "up_proj", "down_proj"],
        "rank_pattern": {"up_proj": 3, r"layers\.1\..*down_proj": 7},
        "alpha_pattern": {"model.layers.0.mlp.down_proj": 32},
    },
    "head and embedding": {"target_modules": ["embed_tokens", "lm_head", "o_proj"]},
    "modules to save": {"target_modules": ["k_proj"], "modules_to_save": ["lm_head"]},
    "bias": {"target_modules": ["q_proj", "k_proj"], "lora_bias": True, "attention_bias": True},
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", LORAS)
def test_an_adapter_is_what_merge_and_unload_gives(tmp_path: Path, kind: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft", reason="needs peft, which .ci/run installs")
    settings = {"r": 4, "lora_alpha": 16, **LORAS[kind]}
    attention_bias = settings.pop("attention_bias", False)
    torch.manual_seed(0)
    if kind == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    else:
        config = transformers.LlamaConfig(**LLAMA, attention_bias=attention_bias, tie_word_embeddings=False)
        model = transformers.LlamaForCausalLM(config)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    wrapped.save_pretrained(tmp_path / "code")
    wrapped.merge_and_unload().save_pretrained(tmp_path / "merged")

    expected = read_checkpoint(tmp_path / "merged")
    before = read_checkpoint(tmp_path / "base")
    with opened(BASE, str(tmp_path / "base")) as base, opened(Role("code"), str(tmp_path / "code"), base) as source:
        assert_source_contract(source)
        assert source.specs.keys() == expected.keys()
        changed = 0
        for name, spec in source.specs.items():
            found = source.weights.read(Block(spec, 0, spec.elements)).reshape(spec.shape)
            _close(name, found, expected[name], before[name])
            changed += (found.astype(np.float32) != before[name].astype(np.float32)).any()
        assert changed >= 3


def _close(name: str, found: Array, expected: Array, before: Array) -> None:
    """Up to the order of a sum in float32; PEFT also rounds the product to bfloat16 before it adds it."""
    found, expected, before = (array.astype(np.float64) for array in (found, expected, before))
    step = 2.0**-22 if _has_float32(found) else 2.0**-8
    room = step * (np.abs(before) + np.abs(expected - before) + np.abs(expected)) + 1e-7
    worst = np.abs(found - expected) / room
    assert worst.max() <= 1, f"{name}: {worst.max()}"


def _has_float32(array: Array) -> bool:
    """Whether some number needs more digits than bfloat16 has."""
    bits = array.astype(np.float32).view(np.uint32)
    return bool((bits & 0xFFFF).any())
