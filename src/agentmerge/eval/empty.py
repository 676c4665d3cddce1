"""Answers without any text: how many, why as far as servers tell, and what to do. They count as no answer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pydantic import Field

from agentmerge.frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.eval.request import Response

WORTH_TELLING = 20
"""One in so many answers may be empty untold, where no server says that it put the text elsewhere."""


class Empty(Frozen):
    """Those of a suite; prompts that did not fit, and calls of tools in place of text, are none."""

    answers: int = 0
    cut_off: int = 0
    """That ended at max_tokens."""
    tokens: int | None = 0
    """That were generated for them; null where the generator does not tell."""
    aside: dict[str, int] = Field(default_factory=dict)
    """By the field in which a server sent what was generated: reasoning_content or reasoning."""


def empty_of(responses: Iterable[Response]) -> Empty:
    """Count the empty ones among answers."""
    found = [response for response in responses if response.empty]
    tokens = [response.tokens for response in found]
    return Empty(
        answers=len(found),
        cut_off=sum(not response.finished for response in found),
        tokens=None if None in tokens else sum(filter(None, tokens)),
        aside=dict(sorted(Counter(response.aside for response in found if response.aside).items())),
    )


def said_of(empty: Empty, requests: int) -> str:
    """What is to be said of them in sentences; "" where they are so few that a model may just have had no answer.

    Args:
        empty: those of a suite.
        requests: of the suite, distinct ones.
    """
    if not empty.answers or not (empty.aside or empty.answers * WORTH_TELLING >= requests):
        return ""
    although = f" although {empty.tokens:,} tokens were generated for them" if empty.tokens else ""
    text = [f"{empty.answers:,} of {requests:,} answers are empty{although}, and count as no answer."]
    if empty.cut_off:
        text.append(f"{empty.cut_off:,} of them ended at max_tokens: raise it for a model that thinks first.")
    fields = " and ".join(f"{name} ({count:,})" for name, count in empty.aside.items())
    if fields:
        text.append(f"The server sent what was generated as {fields}, which is not scored.")
    if fields and empty.answers > empty.cut_off:
        text.append(
            "If that is the answer, serve the model without a reasoning parser (vLLM and SGLang: no "
            "--reasoning-parser; llama.cpp: --reasoning-format none) and evaluate into another --out: stored answers "
            "are kept."
        )
    if not fields and empty.answers > empty.cut_off:
        text.append(
            "Ask one of its prompts by hand: the wrong chat template, a stop text or a parser of the server may leave "
            "nothing of an answer."
        )
    return " ".join(text)
