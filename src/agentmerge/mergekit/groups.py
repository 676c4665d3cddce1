"""Groups of tensors that a mergekit file singles out alike, by names that such models have."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

from agentmerge.mergekit.config import is_embedding, layer_of
from agentmerge.mergekit.parameters import filters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.mergekit.config import MergekitConfig

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


@dataclass
class TensorGroup:
    """Tensors that are merged alike."""

    parts: tuple[str, ...]
    """What their names have in common, in this order; none for the settings of the recipe."""
    words: int = 0
    """How many filters and layers that stands for: a group within another one has more."""
    tensors: list[str] = field(default_factory=list)

    @property
    def glob(self) -> str:
        """A glob that fits them."""
        return "*" + "*".join(re.sub(r"([*?[])", r"[\1]", part) for part in self.parts) + "*" * bool(self.parts)

    @property
    def description(self) -> str:
        """What to call them in a message."""
        layers = [found[1] for part in self.parts if (found := re.fullmatch(r"layers\.(\d+)\.", part))]
        words = [repr(part) for part in self.parts if not re.fullmatch(r"layers\.\d+\.", part)]
        held = f"tensors whose name holds {' and '.join(words)}" if words else ""
        where = f"layer {layers[0]}" if layers else ""
        return " in ".join(filter(None, (held, where))) or "most tensors"


def groups_of(config: MergekitConfig) -> list[TensorGroup]:
    """The groups of a configuration, broad ones first; the first one is of the tensors that nothing singles out."""
    filters = list(dict.fromkeys(word for _, setting in config.settings() for word in filters_of(setting)))
    groups: dict[tuple[Any, ...], TensorGroup] = {(None, frozenset(), ()): TensorGroup(())}
    for tensor in sample_tensors(filters, config.layers):
        place = _place_part(tensor) if config.graded else None
        fitting = frozenset(word for word in filters if word in tensor)
        words = [*fitting, *([place] if place else [])]
        parts = _parts(tensor, words)
        groups.setdefault((place, fitting, parts), TensorGroup(parts, len(words))).tensors.append(tensor)
    return sorted(groups.values(), key=lambda group: group.words)


def _place_part(tensor: str) -> str | None:
    layer = layer_of(tensor)
    if layer is not None:
        return f"layers.{layer}."
    return "embed" if is_embedding(tensor) else None


def _parts(tensor: str, words: list[str]) -> tuple[str, ...]:
    """What a name holds of the words, in the name's order; words that overlap in it become one."""
    spans: list[list[int]] = []
    for start, stop in sorted((tensor.index(word), tensor.index(word) + len(word)) for word in words):
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], stop)
        else:
            spans.append([start, stop])
    return tuple(tensor[start:stop] for start, stop in spans)


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
