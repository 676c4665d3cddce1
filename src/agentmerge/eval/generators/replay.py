"""Answers that are known beforehand: stored ones of an earlier run, or ones that a test makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentmerge.eval.request import JSON, Request, Response


@dataclass(frozen=True)
class Replay:
    """Answers by the key of their request."""

    answers: Mapping[str, Response]
    name: str = "replay"
    """Where they come from, for the record."""

    @property
    def identity(self) -> dict[str, JSON]:
        """Where the answers come from."""
        return {"kind": "replay", "name": self.name}

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """Hand over every stored answer, then complain of those that are not stored."""
        missing = [request for request in requests if request.key not in self.answers]
        for request in requests:
            if request.key in self.answers:
                done(request, self.answers[request.key])
        if missing:
            raise unanswered(missing, self.name)

    def count_tokens(self, text: str) -> int | None:
        """Unknown."""
        return None


@dataclass(frozen=True)
class Scripted:
    """Answers that a function of the request gives: a stand-in for a model in tests and trials."""

    answer: Callable[[Request], Response | str]
    """A text is an answer that ended by itself."""
    name: str = "scripted"

    @property
    def identity(self) -> dict[str, JSON]:
        """Its name."""
        return {"kind": "scripted", "name": self.name}

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """Ask the function, one request after another."""
        from agentmerge.eval.request import Response

        for request in requests:
            answer = self.answer(request)
            done(request, Response(answer, finished=True) if isinstance(answer, str) else answer)

    def count_tokens(self, text: str) -> int | None:
        """Words, as a stand-in for tokens."""
        return len(text.split())


def unanswered(missing: Sequence[Request], where: str) -> EvalError:
    """No answer is stored for these requests."""
    shown = shortened((repr(request.text[-60:]) for request in missing), 2)
    return EvalError(
        f"{where}: no answer is stored for {len(missing):,} requests, such as {shown}",
        todo="That run was not finished, or it had other settings: their prompts or sampling differ. Use its settings, "
        "or ask a model.",
    )
