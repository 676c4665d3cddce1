"""What vLLM and SGLang in this process have in common: batches of tokens, each stored before the next one begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from agentmerge.errors import EvalError, Where
from agentmerge.eval.generators.generator import way_of
from agentmerge.eval.request import Response
from agentmerge.eval.tokens import encode, load_tokenizer
from agentmerge.eval.versions import version_of
from agentmerge.files.documents import json_or_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.eval.request import JSON, Request

BATCH = 1024
"""Requests handed to the engine at once: what a kill loses at most, and enough to fill a GPU."""


@dataclass(frozen=True)
class Offline(ABC):
    """A checkpoint in an engine of this process; texts become tokens here, by the checkpoint's own template."""

    folder: str
    dtype: str = "auto"
    gpus: int = 1
    positions: int | None = None
    """Most tokens of prompt and answer; None is what the checkpoint's config says."""
    empty_if_too_long: bool = False
    batch: int = BATCH

    kind: ClassVar[str]
    """Of the table, and the engine's distribution."""

    @property
    def identity(self) -> dict[str, JSON]:
        """What may change an answer, and the versions."""
        names = {name: version_of(name) for name in (self.kind, "torch", "transformers")}
        facts = {"dtype": self.dtype, "gpus": self.gpus, "too_long": way_of(self.empty_if_too_long)}
        return {"kind": self.kind, **facts, "version": names}

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """A batch after another, in the order of the requests."""
        for start in range(0, len(requests), self.batch):
            chosen = requests[start : start + self.batch]
            encoded = [(request, encode(load_tokenizer(self.folder), request)) for request in chosen]
            fitting = [(request, tokens) for request, tokens in encoded if self._fits(request, tokens)]
            kept = {request.key for request, _ in fitting}
            for request, tokens in encoded:
                if request.key not in kept:
                    done(request, Response.unasked(len(tokens)))
            for (request, _), response in zip(fitting, self.complete(fitting) if fitting else (), strict=True):
                done(request, response)

    def count_tokens(self, text: str) -> int | None:
        """By the checkpoint's tokenizer."""
        return len(load_tokenizer(self.folder)(text)["input_ids"])

    @abstractmethod
    def complete(self, encoded: Sequence[tuple[Request, list[int]]]) -> list[Response]:
        """The answers to requests and their prompts' tokens, in their order."""

    def installed(self) -> None:
        """See that the engine is there.

        Raises:
            EvalError: it is not.
        """
        if find_spec(self.kind) is None:
            todo = f"pip install {self.kind} in an environment of its own, or serve the model elsewhere: --server."
            raise EvalError(f"--generator {self.kind}: {self.kind} is not installed", todo=todo)

    def most_positions(self) -> int | None:
        """Of prompt and answer together; None where nobody tells."""
        if self.positions is not None:
            return self.positions
        from pathlib import Path

        config: dict[str, Any] = json_or_nothing(Path(self.folder) / "config.json")
        found = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
        return int(found) if found else None

    def _fits(self, request: Request, tokens: Sequence[int]) -> bool:
        most, wanted = self.most_positions(), len(tokens) + request.sampling.max_tokens
        if most is None or wanted <= most:
            return True
        if self.empty_if_too_long:
            return False
        raise too_long(self.folder, len(tokens), request.sampling.max_tokens, most)


def too_long(folder: str, prompt: int, new: int, positions: int) -> EvalError:
    """A prompt and its answer take more positions than the model has."""
    return EvalError(
        f"{folder}: a prompt of {prompt:,} tokens and {new:,} new ones",
        expected=f"at most the model's {positions:,} positions together",
        todo="Lower max_tokens of that suite, or let such prompts count as answered by nothing (--too-long empty).",
        where=Where(source=folder),
    )
