"""The Llama of SmolLM2 in plain torch: shapes, weights in one flat tensor, a causal pass and one over packed groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

if torch.cuda.is_available():
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape

END = 2
"""The token <|im_end|>, which ends an answer and fills what follows."""
LONGEST = 2048  # tokens of a prompt and its answer
Keep = Callable[[int, torch.Tensor, torch.Tensor], None]
"""What is done with the keys and values of a layer, [rows, groups, tokens, head]."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are SmolLM2-135M."""

    layers: int = 30
    width: int = 576
    heads: int = 9
    groups: int = 3  # of heads that share keys and values
    head: int = 64
    inner: int = 1536
    words: int = 49152
    theta: float = 100000.0
    epsilon: float = 1e-5

    @staticmethod
    def of(config: dict[str, Any]) -> Shape:
        """From config.json."""
        return Shape(
            layers=config["num_hidden_layers"],
            width=config["hidden_size"],
            heads=config["num_attention_heads"],
            groups=config["num_key_value_heads"],
            head=config["head_dim"],
            inner=config["intermediate_size"],
            words=config["vocab_size"],
            theta=config["rope_theta"],
            epsilon=config["rms_norm_eps"],
        )

    def config(self) -> dict[str, Any]:
        """What config.json says of a Llama of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
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

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by name, in the order of the flat tensor."""
        width, inner, query, key = self.width, self.inner, self.heads * self.head, self.groups * self.head
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.words, width)}
        found["model.norm.weight"] = (width,)
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.q_proj": (query, width),
            "self_attn.k_proj": (key, width),
            "self_attn.v_proj": (key, width),
            "self_attn.o_proj": (width, query),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        for layer in range(self.layers):
            found |= {f"model.layers.{layer}.{part}.weight": size for part, size in parts.items()}
        return found


@dataclass(frozen=True)
class Weights:
    """One flat tensor and views of it by name."""

    shape: Shape
    flat: torch.Tensor
    views: dict[str, torch.Tensor]

    @staticmethod
    def over(shape: Shape, flat: torch.Tensor) -> Weights:
        """Views into `flat`."""
        views, start = {}, 0
        for name, size in shape.sizes().items():
            count = torch.Size(size).numel()
            views[name] = flat[start : start + count].view(size)
            start += count
        return Weights(shape, flat, views)

    @staticmethod
    def empty(shape: Shape, dtype: torch.dtype, device: str) -> Weights:
        count = sum(torch.Size(size).numel() for size in shape.sizes().values())
        return Weights.over(shape, torch.zeros(count, dtype=dtype, device=device))


class Layer(NamedTuple):
    """Tensors of a layer; neighbours in the flat tensor that read the same input are one matrix."""

    first_norm: torch.Tensor
    second_norm: torch.Tensor
    qkv: torch.Tensor  # queries, keys and values below each other
    out: torch.Tensor
    gates: torch.Tensor  # gate and up below each other
    down: torch.Tensor


class Model:
    """The functions of a model whose weights may change in place."""

    def __init__(self, weights: Weights, *, learns: bool = False):
        self.weights, self.shape = weights, weights.shape
        self.dtype, self.device = weights.flat.dtype, weights.flat.device
        self.leaves = blocks(weights.shape, weights.flat)
        if learns:
            self.leaves = [leaf.detach().requires_grad_() for leaf in self.leaves]
        self.embeddings, self.last_norm, *rest = self.leaves
        self.layers = [Layer(*rest[i : i + 6]) for i in range(0, len(rest), 6)]

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.shape.width,), weight, self.shape.epsilon)

    def rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [rows, 1, tokens, head], of positions [rows, tokens]."""
        table = rotations(self.shape.head, self.shape.theta, self.dtype, str(self.device))
        cosines, sines = table[:, positions]
        return cosines[:, None], sines[:, None]

    def heads(
        self, layer: Layer, h: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows, heads, tokens, head], keys and values [rows, groups, tokens, head]."""
        shape, (rows, tokens, _) = self.shape, h.shape
        mixed = F.linear(self.norm(h, layer.first_norm), layer.qkv).view(rows, tokens, -1, shape.head).transpose(1, 2)
        turned = rotated(mixed[:, : shape.heads + shape.groups], turn)
        return turned[:, : shape.heads], turned[:, shape.heads :], mixed[:, shape.heads + shape.groups :]

    def feed(self, layer: Layer, h: torch.Tensor) -> torch.Tensor:
        """`h` and what the second half of a layer adds to it."""
        gate, up = F.linear(self.norm(h, layer.second_norm), layer.gates).chunk(2, dim=-1)
        return h + F.linear(F.silu(gate) * up, layer.down)

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, keep: Keep | None = None
    ) -> torch.Tensor:
        """Last hidden states, [rows, tokens, width].

        Args:
            tokens: [rows, tokens].
            positions: [rows or 1, tokens].
            mask: added to the attention, [rows, 1, tokens, tokens]; none: every token sees itself and those before it.
            keep: called with each layer's keys and values.
        """
        shape, (rows, length) = self.shape, tokens.shape
        turn, h = self.rotation(positions), F.embedding(tokens, self.embeddings)
        for i, layer in enumerate(self.layers):
            query, key, value = self.heads(layer, h, turn)
            if keep:
                keep(i, key, value)
            wide = (rows, shape.groups, shape.heads // shape.groups, length, shape.head)
            key, value = (x[:, :, None].expand(wide).reshape(query.shape) for x in (key, value))
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
            h = h + F.linear(seen.transpose(1, 2).reshape(rows, length, -1), layer.out)
            h = self.feed(layer, h)
        return self.norm(h, self.last_norm)

    def run_packed(self, tokens: torch.Tensor, lengths: torch.Tensor, room: int, answers: int) -> torch.Tensor:
        """The same for prompts that are followed by several answers each, which do not see each other.

        Args:
            tokens: [rows, room + answers x length]: a prompt, filled up to `room`, then its answers.
            lengths: tokens of each prompt, [rows].
            room: places of the prompt.
            answers: how many follow.
        """
        length = (tokens.shape[1] - room) // answers
        place = torch.arange(tokens.shape[1], device=self.device)
        owner = torch.where(place < room, -1, (place - room) // length)
        after = (place - room) % length + lengths[:, None]
        positions = torch.where(owner < 0, place, after)
        causal, prompt = place[:, None] >= place, owner == -1
        fits = causal & (prompt | (owner[:, None] == owner))
        filling = prompt & (place >= lengths[:, None, None]) & (owner[:, None] >= 0)
        size = tokens.shape[1]
        mask = torch.zeros(len(tokens), size, -(-size // 8) * 8, dtype=self.dtype, device=self.device)[..., :size]
        mask.masked_fill_(
            ~fits | filling, torch.finfo(self.dtype).min
        )  # rows of eight numbers: the fast kernels ask so
        return self.run(tokens, positions, mask[:, None])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [..., words]."""
        return F.linear(hidden, self.embeddings).float()


def blocks(shape: Shape, flat: torch.Tensor) -> list[torch.Tensor]:
    """Views of the flat tensor: embeddings, last norm, and six of each layer in the order of `Layer`."""
    width, query = shape.width, shape.heads * shape.head
    layer = [(width,), (width,), (query + 2 * shape.groups * shape.head, width), (width, query)]
    layer += [(2 * shape.inner, width), (width, shape.inner)]
    found, start = [], 0
    for size in [(shape.words, width), (width,), *(layer * shape.layers)]:
        count = torch.Size(size).numel()
        found.append(flat[start : start + count].view(size))
        start += count
    return found


@cache
def rotations(head: int, theta: float, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Cosines and sines of all positions, [2, LONGEST, head]; computed in float32."""
    steps = 1.0 / theta ** (torch.arange(0, head, 2, device=device, dtype=torch.float32) / head)
    angles = torch.arange(LONGEST, device=device, dtype=torch.float32)[:, None] * steps
    angles = torch.cat([angles, angles], dim=-1)
    return torch.stack([angles.cos(), angles.sin()]).to(dtype)


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-second, first], dim=-1) * turn[1]
