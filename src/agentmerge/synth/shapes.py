"""The tensors of each named model: real names and shapes, without data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError, Where, did_you_mean
from agentmerge.synth.configs import CONFIGS, GENERATION_CONFIGS
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.synth.configs import Json

NameAndShape = tuple[str, tuple[int, ...]]
"""A tensor's name and shape."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without its weights: what it is called, its two configs and, derived from them, its tensors."""

    name: str
    config: Json
    """config.json as published."""
    generation: Json
    """generation_config.json as published."""

    def tensors(self) -> list[TensorSpec]:
        """Every tensor of the checkpoint, BF16, sorted by name; a tied head is not stored."""
        return [TensorSpec(name, "BF16", shape) for name, shape in sorted(_model(self.config))]

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(spec.elements for spec in self.tensors())


def find_shape(name: str) -> Shape:
    """The shape of that name.

    Raises:
        RecipeError: there is none.
    """
    if name not in SHAPES:
        hint = did_you_mean(name, SHAPES).strip()
        raise RecipeError(f"shape: '{name}' is not a known shape", todo=hint, where=Where(path="shape"))
    return SHAPES[name]


def _model(config: Json) -> Iterator[NameAndShape]:
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        yield from (_under(f"model.layers.{layer}.", named) for named in _layer(config))


def _layer(config: Json) -> Iterator[NameAndShape]:
    yield "input_layernorm.weight", (config["hidden_size"],)
    yield "post_attention_layernorm.weight", (config["hidden_size"],)
    yield from (_under("self_attn.", named) for named in _attention(config))
    yield from (_under("mlp.", named) for named in _mlp(config))


def _attention(config: Json) -> Iterator[NameAndShape]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", hidden // heads)
    rows = {
        "q": heads * head,
        "k": config["num_key_value_heads"] * head,
        "v": config["num_key_value_heads"] * head,
    }
    for part, size in rows.items():
        yield f"{part}_proj.weight", (size, hidden)
        if config["model_type"] == "qwen2":
            yield f"{part}_proj.bias", (size,)
    yield "o_proj.weight", (hidden, heads * head)
    if config["model_type"].startswith("qwen3"):
        yield "q_norm.weight", (head,)
        yield "k_norm.weight", (head,)


def _mlp(config: Json) -> Iterator[NameAndShape]:
    hidden = config["hidden_size"]
    if "num_experts" not in config:
        yield from _gated(hidden, config["intermediate_size"])
        return
    yield "gate.weight", (config["num_experts"], hidden)
    for expert in range(config["num_experts"]):
        for named in _gated(hidden, config["moe_intermediate_size"]):
            yield _under(f"experts.{expert}.", named)


def _gated(hidden: int, intermediate: int) -> Iterator[NameAndShape]:
    yield "gate_proj.weight", (intermediate, hidden)
    yield "up_proj.weight", (intermediate, hidden)
    yield "down_proj.weight", (hidden, intermediate)


def _under(prefix: str, named: NameAndShape) -> NameAndShape:
    return prefix + named[0], named[1]


SHAPES: dict[str, Shape] = {name: Shape(name, CONFIGS[name], GENERATION_CONFIGS[name]) for name in CONFIGS}
