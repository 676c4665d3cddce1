"""Sizes of the models by family: tensors in the order of the flat tensor, and what config.json says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

END = 2
"""The token <|im_end|>, which ends an answer and fills what follows."""
GLOBAL, SLIDING = "full_attention", "sliding_attention"
Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shape:
    """Of a Llama; the defaults are SmolLM2-135M."""

    layers: int = 30
    width: int = 576
    heads: int = 9
    groups: int = 3  # of heads that share keys and values
    head: int = 64
    inner: int = 1536
    words: int = 49152
    theta: float = 100000.0
    epsilon: float = 1e-5

    family: ClassVar[str] = "llama"

    @property
    def thetas(self) -> tuple[float, ...]:
        """Of the rotation, of each layer."""
        return (self.theta,) * self.layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many tokens a token sees, itself among them, in each layer; none: all before it."""
        return (None,) * self.layers

    def windows_of(self, tokens: int) -> list[int | None]:
        """The windows that so many tokens exceed; none where a layer sees all of them."""
        return [window if window and tokens > window else None for window in self.windows]

    @property
    def scale(self) -> float:
        """Of queries times keys."""
        return float(self.head**-0.5)

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        """From config.json."""
        return cls(**cls._common(config), theta=config["rope_theta"])

    @staticmethod
    def _common(config: dict[str, Any]) -> dict[str, Any]:
        return {
            "layers": config["num_hidden_layers"],
            "width": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "groups": config["num_key_value_heads"],
            "head": config["head_dim"],
            "inner": config["intermediate_size"],
            "words": config["vocab_size"],
            "epsilon": config["rms_norm_eps"],
        }

    def config(self) -> dict[str, Any]:
        """What config.json says of a model of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": self.family,
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "head_dim": self.head,
            "intermediate_size": self.inner,
            "vocab_size": self.words,
            "rope_theta": self.theta,
            "rms_norm_eps": self.epsilon,
            "max_position_embeddings": 8192,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": END,
            "pad_token_id": END,
            "torch_dtype": "bfloat16",
        }

    def layer(self) -> list[Sizes]:
        """Tensors of a layer in the order of the flat tensor; those that read the same input stand together."""
        width, inner, query, key = self.width, self.inner, self.heads * self.head, self.groups * self.head
        return [
            {"input_layernorm": (width,)},
            {"post_attention_layernorm": (width,)},
            {
                "self_attn.q_proj": (query, width),
                "self_attn.k_proj": (key, width),
                "self_attn.v_proj": (key, width),
            },
            {"self_attn.o_proj": (width, query)},
            {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width)},
            {"mlp.down_proj": (width, inner)},
        ]

    def parts(self) -> Iterator[Sizes]:
        """Of the whole model: embeddings, last norm, then layer by layer."""
        yield {"model.embed_tokens.weight": (self.words, self.width)}
        yield {"model.norm.weight": (self.width,)}
        for layer in range(self.layers):
            for part in self.layer():
                yield {f"model.layers.{layer}.{name}.weight": size for name, size in part.items()}

    def sizes(self) -> Sizes:
        """Shape of every tensor by name, in the order of the flat tensor."""
        return {name: size for part in self.parts() for name, size in part.items()}


@dataclass(frozen=True)
class Gemma3Shape(Shape):
    """Of a Gemma 3; the defaults are Gemma 3 270M with its whole vocabulary."""

    layers: int = 18
    width: int = 640
    heads: int = 4
    groups: int = 1
    head: int = 256
    inner: int = 2048
    words: int = 262144
    theta: float = 1e6  # of the layers that see everything
    epsilon: float = 1e-6
    near_theta: float = 1e4  # of those with a window
    window: int = 512
    every: int = 6  # the last of so many layers sees everything
    scalar: int = 256  # its root divides queries times keys

    family: ClassVar[str] = "gemma3_text"

    @property
    def kinds(self) -> list[str]:
        """Of each layer, as config.json names it."""
        return [SLIDING if (i + 1) % self.every else GLOBAL for i in range(self.layers)]

    @property
    def thetas(self) -> tuple[float, ...]:
        return tuple(self.near_theta if kind == SLIDING else self.theta for kind in self.kinds)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(self.window if kind == SLIDING else None for kind in self.kinds)

    @property
    def scale(self) -> float:
        return float(self.scalar**-0.5)

    @classmethod
    def of(cls, config: dict[str, Any]) -> Gemma3Shape:
        turns = config["rope_parameters"]
        return cls(
            **cls._common(config),
            theta=turns[GLOBAL]["rope_theta"],
            near_theta=turns[SLIDING]["rope_theta"],
            window=config["sliding_window"],
            every=config["layer_types"].index(GLOBAL) + 1,
            scalar=config["query_pre_attn_scalar"],
        )

    def config(self) -> dict[str, Any]:
        thetas = {GLOBAL: self.theta, SLIDING: self.near_theta}
        own = {
            "architectures": ["Gemma3ForCausalLM"],
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": self.kinds,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": thetas[kind]} for kind in thetas},
            "sliding_window": self.window,
            "query_pre_attn_scalar": self.scalar,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        }
        left_out = ("hidden_act", "mlp_bias", "rope_theta")
        return {name: value for name, value in super().config().items() if name not in left_out} | own

    def layer(self) -> list[Sizes]:
        norm, second, *matrices = super().layer()
        del second
        return [
            norm,
            {"pre_feedforward_layernorm": (self.width,)},
            *matrices,
            {"post_attention_layernorm": (self.width,)},
            {"post_feedforward_layernorm": (self.width,)},
            {"self_attn.q_norm": (self.head,)},
            {"self_attn.k_norm": (self.head,)},
        ]


def shape_of(config: dict[str, Any]) -> Shape:
    """That of config.json, whichever family it is of."""
    families = {family.family: family for family in (Shape, Gemma3Shape)}
    if config["model_type"] not in families:
        raise SystemExit(f"model_type {config['model_type']!r} in config.json; known are {', '.join(families)}")
    return families[config["model_type"]].of(config)
