"""Names: of agents from paths, and of tensors that filters are tried on. Knows no files."""

from __future__ import annotations

import re
from itertools import permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 64
"""Characters of an agent's name."""
SOME_LAYERS = 128
"""Layers to try filters on where the number is not known."""

_IN_LAYER = (
    "input_layernorm.weight",
    "self_attn.qkv_proj.weight",
    *(f"self_attn.{m}_proj.{part}" for m in "qkvo" for part in ("weight", "bias")),
    *(f"self_attn.{m}_norm.weight" for m in "qk"),
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "mlp.gate_up_proj.weight",
    "mlp.gate.weight",
    *(
        f"{mlp}.{m}_proj.weight"
        for mlp in ("mlp", "mlp.experts.0", "mlp.shared_expert")
        for m in ("gate", "up", "down")
    ),
    "mlp.shared_expert_gate.weight",
    "block_sparse_moe.gate.weight",
    *(f"block_sparse_moe.experts.0.{m}.weight" for m in ("w1", "w2", "w3")),
)
_OUTSIDE = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def agent_names(sources: Iterable[str]) -> dict[str, str]:
    """A valid name of its own for every source, from the last part of its path."""
    names: dict[str, str] = {}
    for source in sources:
        last = re.split(r"[\\/]", re.sub(r"@[^@/\\]*$", "", source).rstrip("/\\"))[-1]
        plain = re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9_.+-]+", "-", last))[:LONGEST] or "agent"
        taken, name, number = {"base", *names.values()}, plain, 2
        while name in taken:
            end = f"-{number}"
            name, number = plain[: LONGEST - len(end)] + end, number + 1
        names[source] = name
    return names


def layer_of(tensor: str) -> int | None:
    """The number of a tensor's layer; None outside of the layers."""
    found = re.search(r"(?:^|\.)layers\.(\d+)\.", tensor)
    return int(found[1]) if found else None


def is_embedding(tensor: str) -> bool:
    """Whether a tensor stands before the layers; what stands neither before nor in them stands after."""
    return "embed" in tensor


def sample_tensors(filters: Iterable[str], layers: int | None) -> list[str]:
    """Tensor names of Llama-like models, and a made-up one for every filter that fits none of those.

    Two filters of which one fits none of them may meet in one name, in either order.
    """
    count, wanted = layers or SOME_LAYERS, list(dict.fromkeys(filters))
    names = [f"model.layers.{i}.{part}" for i in range(count) for part in _IN_LAYER] + list(_OUTSIDE)
    strange = {word for word in wanted if not any(word in name for name in names)}
    pairs = [f"{a}.{b}" for a, b in permutations(wanted, 2) if strange & {a, b}]
    made_up = [*sorted(strange), *pairs]
    return names + made_up + [f"model.layers.{i}.{part}" for i in range(layers or 1) for part in made_up]
