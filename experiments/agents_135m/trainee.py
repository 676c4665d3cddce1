"""A model that learns: float32 weights and gradients, a bfloat16 copy that answers and is differentiated."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from families import model_of
from model import Weights, blocks

TOKENS = 5000  # of prompts and answers in one pass backward; less if memory runs out
LEAST = 900
MIDDLE = 8  # layers, at most


class Lesson(NamedTuple):
    """Prompts with the same number of answers each, and how much each answer counts.

    tokens [prompts, room], lengths [prompts], answers [prompts, group, length], sizes [prompts, group] (tokens of an
    answer, its end included), weights [prompts, group].
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    answers: torch.Tensor
    sizes: torch.Tensor
    weights: torch.Tensor


class Trainee:
    """The learning model.

    Args:
        weights: bfloat16; they change in place.
        sparse: only the layers in the middle may move.
        tokens: of one pass backward.
    """

    def __init__(self, weights: Weights, *, sparse: bool = False, tokens: int = TOKENS):
        self.weights, self._tokens = weights, tokens
        self.answering = model_of(weights)
        self._learning = model_of(weights, learns=True)
        self._master = weights.flat.detach().float().clone()
        self.gradient = torch.zeros_like(self._master)
        self._parts = blocks(weights.shape, self.gradient)
        self._span = span(weights, middle(weights.shape.layers)) if sparse else (0, len(self._master))
        self._master.requires_grad_()
        self._master.grad = self.gradient
        fused = weights.flat.is_cuda
        self._adam = torch.optim.AdamW([self._master], lr=0.0, eps=1e-8, weight_decay=0.0, fused=fused)

    def step(self, rate: float) -> float:
        """One step of AdamW on what was gathered, its norm cut to 1; returns the norm before."""
        start, stop = self._span
        self.gradient[:start].zero_()
        self.gradient[stop:].zero_()
        norm = float(self.gradient.norm())
        if math.isfinite(norm):
            self.gradient.mul_(1.0 / max(norm, 1.0))
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
            with torch.no_grad():
                self.weights.flat.copy_(self._master)
        self.gradient.zero_()
        return norm

    def gather(self, lesson: Lesson, norm: float) -> float:
        """Add the gradient of -sum over answers of weight log p(answer) / norm; returns that sum.

        Prompts of like length go together, as many as `tokens` allows; a prompt is read once for all its answers.
        """
        order = torch.argsort(lesson.lengths, descending=True)
        lengths, sizes = lesson.lengths[order].tolist(), lesson.sizes[order].amax(1).tolist()
        start, total = 0, 0.0
        while start < len(lengths):
            stop = self._pass_end(lengths, sizes, start, lesson.answers.shape[1])
            chosen = order[start:stop]
            try:
                total += self._backward(Lesson(*(part[chosen] for part in lesson)), norm)
            except torch.cuda.OutOfMemoryError:
                for leaf in self._learning.leaves:
                    leaf.grad = None
                torch.cuda.empty_cache()
                if self._tokens < LEAST or stop == start + 1:
                    raise
                self._tokens //= 2
                continue
            start = stop
        return total

    def _pass_end(self, lengths: list[int], sizes: list[int], start: int, group: int) -> int:
        stop, longest, room = start, 0, upwards(lengths[start], 8)
        while stop < len(lengths):
            longest = max(longest, sizes[stop])
            if stop > start and (stop + 1 - start) * (room + group * longest) > self._tokens:
                break
            stop += 1
        return stop

    def _backward(self, lesson: Lesson, norm: float) -> float:
        rows, group = lesson.sizes.shape
        room = min(upwards(int(lesson.lengths.max()), 8), lesson.tokens.shape[1])
        length = min(upwards(int(lesson.sizes.max()), 8), lesson.answers.shape[2])
        answers = lesson.answers[:, :, :length]
        tokens = torch.cat([lesson.tokens[:, :room], answers.reshape(rows, -1)], dim=1)
        hidden = self._learning.run_packed(tokens, lesson.lengths, room, group)
        width = hidden.shape[-1]
        last = hidden[torch.arange(rows, device=hidden.device), lesson.lengths - 1]
        inner = hidden[:, room:].view(rows, group, length, width)[:, :, :-1]
        before = torch.cat([last[:, None, None].expand(rows, group, 1, width), inner], dim=2)
        counted = torch.arange(length, device=hidden.device) < lesson.sizes[..., None]
        losses = F.cross_entropy(self._learning.logits(before[counted]), answers[counted], reduction="none")
        loss = (losses * lesson.weights[..., None].expand_as(counted)[counted]).sum() / norm
        loss.backward()
        leaves = self._learning.leaves
        torch._foreach_add_(self._parts, [leaf.grad.float() for leaf in leaves])
        for leaf in leaves:
            leaf.grad = None
        return -float(loss.detach())


def upwards(number: int, step: int) -> int:
    return -(-number // step) * step


def span(weights: Weights, layers: tuple[int, int]) -> tuple[int, int]:
    """Where these layers begin and end in the flat tensor; they lie beside each other at its end."""
    each = sum(torch.Size(size).numel() for part in weights.shape.layer() for size in part.values())
    start = weights.flat.numel() - weights.shape.layers * each
    return start + layers[0] * each, start + (layers[1] + 1) * each


def middle(layers: int) -> tuple[int, int]:
    """First and last of the layers in the middle: a third of all, at most eight (10 to 17 of 30, 6 to 11 of 18)."""
    first = layers // 3
    return first, first + max(1, min(MIDDLE, layers // 3)) - 1
