"""What a model is asked and what it answers, as text; a request is known by the hash of all that it says."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

from pydantic import Field

from agentmerge.frozen import Settings

JSON: TypeAlias = Any
"""Plain data, as JSON holds it: dict, list, str, int, float, bool or None."""
CALLS = ("tool_calls", "function_call")
"""Fields of an answer that hold calls, beside which there need be no text."""


class Sampling(Settings):
    """How tokens are drawn; every field stands in the record."""

    max_tokens: int = Field(ge=1)
    """New tokens after which an answer is cut off."""
    temperature: float = Field(default=0.0, ge=0)
    """0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    """None keeps every token."""
    stop: tuple[str, ...] = ()
    """Texts before which an answer ends."""
    seed: int | None = None
    """Of the first sample; sample i is drawn with seed + i. None leaves it to the generator."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    """system, user or assistant."""
    content: str


@dataclass(frozen=True)
class Request:
    """One answer that is wanted: to a chat, which gets the model's chat template, or to raw text."""

    messages: tuple[Message, ...] | None
    prompt: str | None
    """Exactly one of the two."""
    sampling: Sampling
    sample: int = 0
    """Which of several samples of one prompt."""

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("a request has messages or a prompt, exactly one of the two")

    @classmethod
    def chat(cls, text: str, sampling: Sampling, *, system: str | None = None, sample: int = 0) -> Self:
        """A single user message, and a system message before it."""
        before = () if system is None else (Message("system", system),)
        return cls((*before, Message("user", text)), None, sampling, sample)

    @classmethod
    def raw(cls, text: str, sampling: Sampling, *, sample: int = 0) -> Self:
        """Text that the model goes on with, without a chat template."""
        return cls(None, text, sampling, sample)

    @cached_property
    def key(self) -> str:
        """SHA-256 of its canonical JSON."""
        text = json.dumps(self.dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def seed(self) -> int | None:
        """Of this very sample."""
        return None if self.sampling.seed is None else self.sampling.seed + self.sample

    @property
    def text(self) -> str:
        """All that the model reads of it, but for what a chat template adds: to count and to show."""
        return self.prompt if self.messages is None else "\n".join(message.content for message in self.messages)  # type: ignore[return-value]

    def dump(self) -> dict[str, JSON]:
        """Plain data; `load` reads it back."""
        messages = None if self.messages is None else [asdict(message) for message in self.messages]
        return {
            "messages": messages,
            "prompt": self.prompt,
            "sampling": self.sampling.model_dump(mode="json"),
            "sample": self.sample,
        }

    @classmethod
    def load(cls, data: dict[str, JSON]) -> Self:
        """The request that `dump` made this of."""
        messages = data["messages"]
        chat = None if messages is None else tuple(Message(**message) for message in messages)
        return cls(chat, data["prompt"], Sampling.model_validate(data["sampling"]), data["sample"])


@dataclass(frozen=True)
class Response:
    """What was answered to one request."""

    text: str
    finished: bool
    """Whether it ended by itself, with the end token or a stop text; False where it was cut off."""
    prompt_tokens: int | None = None
    """None where the generator does not tell, as with `tokens`."""
    tokens: int | None = None
    """That were generated."""
    stop: str | None = None
    """The stop text before which it ended, where the generator tells."""
    fits: bool = True
    """False of a prompt that the model can't hold and was never asked: it counts as answered by nothing, for now."""

    aside: str = ""
    """Where text is empty: the field in which a server sent what was generated instead, such as reasoning_content."""

    @property
    def empty(self) -> bool:
        """Whether a prompt that was asked got no text, and no calls of tools in its place."""
        return self.fits and self.aside not in CALLS and not self.text.strip()

    @classmethod
    def unasked(cls, prompt_tokens: int | None = None) -> Self:
        """Of a prompt that does not fit."""
        return cls("", finished=False, prompt_tokens=prompt_tokens, tokens=0, fits=False)
