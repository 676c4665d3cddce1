"""A checkpoint in this process by transformers: slow, exact, and everywhere."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.generators.generator import way_of
from agentmerge.eval.generators.offline import too_long
from agentmerge.eval.request import Response
from agentmerge.eval.tokens import encode
from agentmerge.eval.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentmerge.eval.request import JSON, Request, Sampling

Encoded = tuple["Request", list[int]]
BATCH = 64
"""Most requests answered together."""
BATCH_TOKENS = 32_768
"""Most tokens of them, padded prompts and new ones."""


@dataclass(frozen=True)
class Transformers:
    """Batches of prompts of like length; greedy answers don't depend on the batch but for ties in the last bits."""

    folder: str
    device: str = "auto"
    dtype: str = "auto"
    """float32 on a CPU, the checkpoint's own on a GPU."""
    threads: int | None = None
    batch: int = BATCH
    empty_if_too_long: bool = False
    """Whether a prompt longer than the model's positions counts as answered by nothing, or ends the run."""

    @property
    def identity(self) -> dict[str, JSON]:
        """What may change an answer, and the versions."""
        names = {name: version_of(name) for name in ("torch", "transformers")}
        facts = {"device": self.device, "dtype": self.dtype, "too_long": way_of(self.empty_if_too_long)}
        return {"kind": "hf", **facts, "version": names}

    @cached_property
    def model(self) -> LanguageModel:
        """Loaded at the first request."""
        return LanguageModel.load(self.folder, threads=self.threads, device=self.device, dtype=self.dtype)

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """Batch by batch, the short prompts first."""
        kinds: defaultdict[Sampling, list[Encoded]] = defaultdict(list)
        for request in requests:
            tokens = encode(self.model.tokenizer, request)
            if self._fits(request, tokens):
                kinds[request.sampling].append((request, tokens))
            else:
                done(request, Response.unasked(len(tokens)))
        for sampling, encoded in kinds.items():
            for batch in self._batches(encoded, sampling.max_tokens):
                found = self.model.complete([tokens for _, tokens in batch], sampling, seed_of(batch))
                for (request, _), response in zip(batch, found, strict=True):
                    done(request, response)

    def count_tokens(self, text: str) -> int | None:
        """By the checkpoint's tokenizer."""
        return len(self.model.tokenizer(text)["input_ids"])

    def _fits(self, request: Request, tokens: list[int]) -> bool:
        positions, wanted = self.model.positions, len(tokens) + request.sampling.max_tokens
        if positions is None or wanted <= positions:
            return True
        if self.empty_if_too_long:
            return False
        raise too_long(self.folder, len(tokens), request.sampling.max_tokens, positions)

    def _batches(self, encoded: list[Encoded], new: int) -> Iterator[list[Encoded]]:
        batch: list[Encoded] = []
        for one in sorted(encoded, key=lambda one: len(one[1])):
            full = (len(one[1]) + new) * (len(batch) + 1) > BATCH_TOKENS
            if batch and (full or len(batch) == self.batch):
                yield batch
                batch = []
            batch.append(one)
        if batch:
            yield batch


def seed_of(batch: Sequence[Encoded]) -> int | None:
    """Of a batch, by the seeds and keys of its requests; None where one of them has no seed."""
    seeds = [request.seed for request, _ in batch]
    if None in seeds:
        return None
    text = "".join(f"{request.seed} {request.key}" for request, _ in batch)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little")
