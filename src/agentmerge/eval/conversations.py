"""All conversations of a suite, stepped together: what is open in any of them is answered at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentmerge.eval.request import JSON, Request, Response
    from agentmerge.eval.suite import Conversation, Item, Suite


@dataclass(frozen=True)
class Round:
    """What is open after as many turns of every conversation that still goes on."""

    turn: int
    """From 1."""
    requests: tuple[Request, ...]
    """Distinct ones, in the order of the items."""


def converse_all(suite: Suite, items: Sequence[Item], answer: Callable[[Round], Mapping[str, Response]]) -> list[JSON]:
    """The outputs of all items, in their order.

    Args:
        suite: whose conversations.
        items: what is asked.
        answer: the answers to a round's requests by their keys; it may hold more.
    """
    outputs: list[JSON] = [None] * len(items)
    live: dict[int, tuple[Conversation, Sequence[Request]]] = {}
    for place, item in enumerate(items):
        _step(suite.converse(item), None, place, live, outputs)
    turn = 0
    while live:
        turn += 1
        wanted = {request.key: request for _, requests in live.values() for request in requests}
        known = answer(Round(turn, tuple(wanted.values())))
        going, live = live, {}
        for place, (talk, requests) in going.items():
            _step(talk, [known[request.key] for request in requests], place, live, outputs)
    return outputs


def _step(
    talk: Conversation,
    responses: list[Response] | None,
    place: int,
    live: dict[int, tuple[Conversation, Sequence[Request]]],
    outputs: list[JSON],
) -> None:
    """One conversation up to its next requests, or to its output."""
    try:
        live[place] = talk, (next(talk) if responses is None else talk.send(responses))
    except StopIteration as end:
        outputs[place] = end.value
