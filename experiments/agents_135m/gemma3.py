"""What a Gemma 3 does otherwise than a Llama: norms around both halves of a layer and of heads, GeGLU, scaled words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F  # noqa: N812
from model import Layer, Model


@dataclass(frozen=True)
class Gemma3Layer(Layer):
    """With norms of what both halves add, and of queries and keys."""

    attention_norm: torch.Tensor
    feed_norm: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor


class Gemma3(Model):
    """The functions of a Gemma 3; windows and rotations of its layers stand in its shape."""

    layer = Gemma3Layer

    @cached_property
    def _scale(self) -> float:
        """Of embeddings that are read: the root of their width, in the dtype of the model."""
        return float(torch.tensor(self.shape.width**0.5).to(self.dtype))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().embed(tokens) * self._scale

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """With 1 + weight, in float32."""
        return F.rms_norm(x.float(), weight.shape, 1.0 + weight.float(), self.shape.epsilon).to(x.dtype)

    def mixed(self, layer: Gemma3Layer, h: torch.Tensor) -> torch.Tensor:
        parts = (self.shape.heads, self.shape.groups, self.shape.groups)
        query, key, value = super().mixed(layer, h).split(parts, dim=1)
        return torch.cat([self.norm(query, layer.query_norm), self.norm(key, layer.key_norm), value], dim=1)

    def attend(self, layer: Gemma3Layer, h: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return h + self.norm(F.linear(seen, layer.out), layer.attention_norm)

    def feed(self, layer: Gemma3Layer, h: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(self.norm(h, layer.second_norm), layer.gates).chunk(2, dim=-1)
        added = F.linear(F.gelu(gate, approximate="tanh") * up, layer.down)
        return h + self.norm(added, layer.feed_norm)
