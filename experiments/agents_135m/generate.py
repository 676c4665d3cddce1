"""Answers to a fixed number of prompts at once, from a cache of fixed places; on a GPU a step is one CUDA graph."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
from model import Model
from shapes import END

CHUNK = 40_000  # tokens of prompts read at once
LOOK = 4  # steps between two looks whether all answers have ended


@cache
def graph_pool() -> tuple[int, int]:
    """Memory that all graphs share: none leaves anything in it."""
    return torch.cuda.graph_pool_handle()


def cache_bytes(model: Model, rows: int, places: int) -> int:
    """Of the keys and values of `rows` sequences with `places` tokens each."""
    shape = model.shape
    return 2 * shape.layers * rows * shape.groups * places * shape.head * model.dtype.itemsize


class Generator:
    """Reads `prompts` prompts of at most `room` tokens, writes `group` answers to each, of at most `length` tokens.

    A prompt fills the first places of its row, the answer starts at place `room`; places between them are never seen.

    Args:
        model: its weights may change in place between calls.
        prompts: how many; every call has just so many.
        room: tokens of the longest prompt.
        length: tokens of the longest answer, its end included.
        group: answers of a prompt.
        greedy: the likeliest token; otherwise one is drawn at temperature 1.
        storage: uint8 that several generators share for their caches; none: an own one.
    """

    _latest: ClassVar[torch.cuda.CUDAGraph | None] = None
    """Kept alive: the memory that graphs share is gone with the last of them, and its handle with it."""

    def __init__(
        self,
        model: Model,
        prompts: int,
        room: int,
        length: int,
        *,
        group: int = 1,
        greedy: bool = True,
        storage: torch.Tensor | None = None,
    ):
        self.model, self.prompts, self.room, self.length = model, prompts, room, length
        self.group, self.greedy = group, greedy
        rows, places, device, shape = prompts * group, room + length, model.device, model.shape
        size = cache_bytes(model, rows, places)
        storage = torch.empty(size, dtype=torch.uint8, device=device) if storage is None else storage
        part = storage[:size].view(model.dtype)
        self.keys, self.values = part.view(2, shape.layers, rows, shape.groups, places, shape.head)
        self.lengths = torch.ones(rows, dtype=torch.long, device=device)
        self.latest = torch.zeros(rows, dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.answers = torch.full((rows, length), END, dtype=torch.long, device=device)
        self.written = torch.zeros(1, dtype=torch.long, device=device)
        self.places = torch.arange(places, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        self.keys.zero_()
        self.values.zero_()
        self.written.fill_(1)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(aside):
            self._step()
            self.written.fill_(1)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self._graph, pool=graph_pool()):
            self._step()
        Generator._latest = self._graph

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Answers [prompts x group, length], filled with END after their ends.

        Args:
            tokens: [prompts, room], filled up on the right.
            lengths: [prompts].
        """
        self.lengths.copy_(lengths.repeat_interleave(self.group))
        self.ended.zero_()
        self.answers.fill_(END)
        self.written.zero_()
        self._choose(self._read(tokens, lengths).repeat_interleave(self.group, 0))
        for step in range(1, self.length):
            if step % LOOK == 0 and bool(self.ended.all()):
                break
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
        return self.answers.clone()

    def _read(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Fill the cache; hidden states of the last tokens, [prompts, width]. Short prompts are read together."""
        self.keys.zero_()
        self.values.zero_()  # a model that gave NaN must not reach the next one
        order = torch.argsort(lengths)
        sizes = lengths[order].tolist()
        hidden = torch.empty(self.prompts, self.model.shape.width, dtype=self.model.dtype, device=tokens.device)
        start = 0
        while start < self.prompts:
            stop = chunk_end(sizes, start)
            width = min(-(-sizes[stop - 1] // 8) * 8, self.room)
            chosen = order[start:stop]
            hidden[chosen] = self._read_chunk(tokens[chosen, :width], chosen, lengths[chosen])
            start = stop
        return hidden

    def _read_chunk(self, tokens: torch.Tensor, chosen: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        width = tokens.shape[1]
        rows = (chosen[:, None] * self.group + torch.arange(self.group, device=chosen.device)).flatten()

        def keep(layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
            self.keys[layer, rows, :, :width] = key.repeat_interleave(self.group, 0)
            self.values[layer, rows, :, :width] = value.repeat_interleave(self.group, 0)

        hidden = self.model.run(tokens, self.places[None, :width], None, keep)
        return hidden[torch.arange(len(tokens), device=tokens.device), lengths - 1]

    def _step(self) -> None:
        """Put the latest token into the cache and choose the next."""
        model, shape = self.model, self.model.shape
        place = self.room + self.written - 1
        turns, biases = model.rotations((self.lengths + self.written - 1)[:, None]), self._biases(place)
        h = model.embed(self.latest[:, None])
        for i, layer in enumerate(model.layers):
            query, key, value = model.heads(layer, h, turns[i])
            keys, values = self.keys[i], self.values[i]
            keys.index_copy_(2, place, key)
            values.index_copy_(2, place, value)
            query = query.reshape(len(h), shape.groups, -1, shape.head)
            found = torch.matmul(query, keys.transpose(2, 3)).float() * shape.scale + biases[i]
            mixed = torch.matmul(found.softmax(-1).to(model.dtype), values)
            h = model.attend(layer, h, mixed.reshape(len(h), 1, -1))
            h = model.feed(layer, h)
        self._choose(model.norm(h, model.last_norm)[:, 0])

    def _biases(self, place: torch.Tensor) -> list[torch.Tensor]:
        """What each layer adds to the attention of the token at `place`, float32 [rows, 1, 1, places]."""
        seen = (self.places < self.lengths[:, None]) | ((self.places >= self.room) & (self.places <= place))
        windows, found = self.model.shape.windows_of(len(self.places)), {}
        for window in dict.fromkeys(windows):
            near = seen
            if window:  # a place of the answer stands so many tokens after the prompt
                after = self.places - self.room + self.lengths[:, None]
                position = torch.where(self.places < self.room, self.places, after)
                near = seen & (self.lengths[:, None] + self.written - 1 - position < window)
            found[window] = torch.zeros(near.shape, device=near.device).masked_fill(~near, -1e30)[:, None, None]
        return [found[window] for window in windows]

    def _choose(self, hidden: torch.Tensor) -> None:
        scores = self.model.logits(hidden)
        if not self.greedy:  # the largest of scores with Gumbel noise is a draw from their softmax
            scores = scores - torch.empty_like(scores).exponential_().log_()
        token = scores.argmax(-1).masked_fill(self.ended, END)
        self.answers.index_copy_(1, self.written, token[:, None])
        self.ended |= token == END
        self.latest.copy_(token)
        self.written += 1


def chunk_end(sizes: list[int], start: int) -> int:
    """Where a chunk of sorted lengths ends that starts at `start`."""
    stop = start + 1
    while stop < len(sizes) and (stop + 1 - start) * sizes[stop] <= CHUNK:
        stop += 1
    return stop
