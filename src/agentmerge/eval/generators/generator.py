"""What a generator is: whatever answers requests. A table of those that come with the package is at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.eval.request import JSON, Request, Response


class Generator(Protocol):
    """Answers requests with one model.

    Making one is cheap: weights are loaded and servers are asked at the first request.
    """

    @property
    def identity(self) -> dict[str, JSON]:
        """What goes into the record, its "kind" first; answers of another identity are not gone on with."""
        ...

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """Answer all of these, in any order.

        Args:
            requests: distinct ones.
            done: called with each answer as soon as it is there, from the calling thread alone.

        Raises:
            EvalError: an answer can't be had; what came before has been handed to `done`.
        """
        ...

    def count_tokens(self, text: str) -> int | None:
        """Tokens of a text by the model's tokenizer; None where that is not known."""
        ...


def way_of(empty_if_too_long: bool) -> str:
    """What a prompt that the model can't hold does, as the option --too-long and the record say it."""
    return "empty" if empty_if_too_long else "stop"
