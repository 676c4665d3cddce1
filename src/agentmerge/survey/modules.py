"""What part of a transformer a tensor is, by its name: a layer and a kind of module. Knows no numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

KINDS = (
    ("embeddings", r"embed|wte|wpe|word_embedding"),
    ("head", r"lm_head|^head\.|output_layer|embed_out"),
    ("norm", r"norm|\bln_|layer_?norm"),
    ("shared expert", r"shared_expert"),
    ("experts", r"experts?\."),
    ("router", r"router|mlp\.gate\.|block_sparse_moe\.gate"),
    ("attention q", r"\b(q_proj|wq|q_a_proj|q_b_proj|query)\b"),
    ("attention k", r"\b(k_proj|wk|key)\b"),
    ("attention v", r"\b(v_proj|wv|value)\b"),
    ("attention qkv", r"qkv|query_key_value|c_attn|kv_a_proj|kv_b_proj"),
    ("attention o", r"\b(o_proj|wo|out_proj)\b|attn\.c_proj|attention\.dense"),
    ("mlp gate", r"\b(gate_proj|w1)\b"),
    ("mlp gate+up", r"gate_up_proj"),
    ("mlp up", r"\b(up_proj|w3|c_fc|fc1|dense_h_to_4h)\b"),
    ("mlp down", r"\b(down_proj|w2|fc2|dense_4h_to_h)\b|mlp\.c_proj"),
)
"""Kinds and what their names contain, in the order they are tried."""
OTHER = "other"
ORDER = (
    "embeddings", "attention q", "attention k", "attention v", "attention qkv", "attention o", "mlp gate",
    "mlp gate+up", "mlp up", "mlp down", "router", "experts", "shared expert", "norm", "head", OTHER,
)  # fmt: skip
"""As a reader meets them on the way through a model."""

_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in KINDS)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")


class Module(NamedTuple):
    """A place in the model; experts of a layer are one."""

    layer: int
    """-1 outside the layers."""
    kind: str


def module_of(tensor: str) -> Module:
    """The place of a tensor, by the first kind of the table whose pattern its name contains."""
    layer = _LAYER.search(tensor)
    kind = next((kind for kind, pattern in _PATTERNS if pattern.search(tensor)), OTHER)
    return Module(int(layer.group(1)) if layer else -1, kind)


def in_order(modules: list[Module]) -> list[Module]:
    """By layer, then in the order of a forward pass."""
    return sorted(modules, key=lambda module: (module.layer, ORDER.index(module.kind)))
