"""A Llama in plain torch: weights in one flat tensor, a causal pass and one over packed groups. Others build on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from shapes import Shape

if torch.cuda.is_available():
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape

LONGEST = 2048  # tokens of a prompt and its answer
Keep = Callable[[int, torch.Tensor, torch.Tensor], None]
"""What is done with the keys and values of a layer, [rows, groups, tokens, head]."""


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


@dataclass(frozen=True)
class Layer:
    """Tensors of a layer; neighbours in the flat tensor that read the same input are one matrix."""

    first_norm: torch.Tensor
    second_norm: torch.Tensor
    qkv: torch.Tensor  # queries, keys and values below each other
    out: torch.Tensor
    gates: torch.Tensor  # gate and up below each other
    down: torch.Tensor


class Model:
    """The functions of a model whose weights may change in place; `model_of` makes that of a shape."""

    layer: type[Layer] = Layer

    def __init__(self, weights: Weights, *, learns: bool = False):
        self.weights, self.shape = weights, weights.shape
        self.dtype, self.device = weights.flat.dtype, weights.flat.device
        self.leaves = blocks(weights.shape, weights.flat)
        if learns:
            self.leaves = [leaf.detach().requires_grad_() for leaf in self.leaves]
        self.embeddings, self.last_norm, *rest = self.leaves
        each = len(fields(self.layer))
        self.layers = [self.layer(*rest[i : i + each]) for i in range(0, len(rest), each)]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the first layer reads, [rows, tokens, width]."""
        return F.embedding(tokens, self.embeddings)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Over the last dimension."""
        return F.rms_norm(x, weight.shape, weight, self.shape.epsilon)

    def rotations(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines of each layer, [rows, 1, tokens, head], of positions [rows, tokens]."""
        found = {}
        for theta in dict.fromkeys(self.shape.thetas):
            cosines, sines = rotations(self.shape.head, theta, self.dtype, str(self.device))[:, positions]
            found[theta] = (cosines[:, None], sines[:, None])
        return [found[theta] for theta in self.shape.thetas]

    def heads(
        self, layer: Layer, h: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows, heads, tokens, head], keys and values [rows, groups, tokens, head]."""
        shape, mixed = self.shape, self.mixed(layer, h)
        turned = rotated(mixed[:, : shape.heads + shape.groups], turn)
        return turned[:, : shape.heads], turned[:, shape.heads :], mixed[:, shape.heads + shape.groups :]

    def mixed(self, layer: Layer, h: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values before they are turned, [rows, heads + 2 groups, tokens, head]."""
        rows, tokens, _ = h.shape
        mixed = F.linear(self.norm(h, layer.first_norm), layer.qkv)
        return mixed.view(rows, tokens, -1, self.shape.head).transpose(1, 2)

    def attend(self, layer: Layer, h: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """`h` and what the attention adds to it, which has found `seen`, [rows, tokens, heads x head]."""
        return h + F.linear(seen, layer.out)

    def feed(self, layer: Layer, h: torch.Tensor) -> torch.Tensor:
        """`h` and what the second half of a layer adds to it."""
        gate, up = F.linear(self.norm(h, layer.second_norm), layer.gates).chunk(2, dim=-1)
        return h + F.linear(F.silu(gate) * up, layer.down)

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor | None, keep: Keep | None = None
    ) -> torch.Tensor:
        """Last hidden states, [rows, tokens, width].

        Args:
            tokens: [rows, tokens].
            positions: [rows or 1, tokens].
            hidden: what no token sees in any layer, bool [rows, tokens, tokens]; none: every token sees itself and
                those before it, and positions count from 0.
            keep: called with each layer's keys and values.
        """
        shape, (rows, length) = self.shape, tokens.shape
        turns, masks, h = self.rotations(positions), self._masks(positions, hidden), self.embed(tokens)
        for i, layer in enumerate(self.layers):
            query, key, value = self.heads(layer, h, turns[i])
            if keep:
                keep(i, key, value)
            wide = (rows, shape.groups, shape.heads // shape.groups, length, shape.head)
            key, value = (x[:, :, None].expand(wide).reshape(query.shape) for x in (key, value))
            seen = F.scaled_dot_product_attention(
                query, key, value, attn_mask=masks[i], is_causal=masks[i] is None, scale=shape.scale
            )
            h = self.attend(layer, h, seen.transpose(1, 2).reshape(rows, length, -1))
            h = self.feed(layer, h)
        return self.norm(h, self.last_norm)

    def _masks(self, positions: torch.Tensor, hidden: torch.Tensor | None) -> list[torch.Tensor | None]:
        """What each layer adds to its attention, [rows or 1, 1, tokens, tokens]; none: causal."""
        windows = self.shape.windows_of(positions.shape[1])
        found: dict[int | None, torch.Tensor | None] = {}
        for window in dict.fromkeys(windows):
            unseen = hidden
            if window:
                back = positions[:, :, None] - positions[:, None]
                unseen = (back >= window) | (back < 0 if hidden is None else hidden)
            found[window] = None if unseen is None else self._mask(unseen)
        return [found[window] for window in windows]

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        """The lowest number where `hidden`; rows of eight numbers: the fast kernels ask so."""
        rows, size, _ = hidden.shape
        mask = torch.zeros(rows, size, -(-size // 8) * 8, dtype=self.dtype, device=self.device)[..., :size]
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)[:, None]

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
        return self.run(tokens, positions, ~fits | filling)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [..., words]."""
        return F.linear(hidden, self.embeddings).float()


def blocks(shape: Shape, flat: torch.Tensor) -> list[torch.Tensor]:
    """Views of the flat tensor: embeddings, last norm, and those of each layer in the order of its fields."""
    found, start = [], 0
    for part in shape.parts():
        (_, *columns), *_ = part.values()
        size = (sum(rows for rows, *_ in part.values()), *columns)
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
