"""Samples of a wanted number of tokens: how many documents, and which ones."""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError
from agentmerge.eval.memory.documents import Pool, Question, context_of, drawn, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.eval.tokenizer import TextTokenizer

SHORTEST = 0.98
"""Of the wanted tokens, that a sample has at least."""
MARGIN = 0.997
"""Of the wanted tokens, that a sample is filled with: the rest is for what a sample's seams differ by."""


def costs_of(pool: Pool, tokenizer: TextTokenizer) -> list[int]:
    """Tokens of each document with its number and the empty line after it."""
    return tokenizer.counts([f"Document 100:\n{document}\n\n" for document in pool.documents])


class Filler:
    """Fills the samples of one length with documents, up to a number of tokens.

    RULER finds one number of documents for all samples of a length, in steps of ten; so its samples are up to a fifth
    too short at 8K. Here each sample is filled by itself, document by document, and the last ones are those that fit.
    """

    def __init__(self, pool: Pool, costs: Sequence[int], tokenizer: TextTokenizer) -> None:
        self._pool, self._costs, self._tokenizer = pool, costs, tokenizer
        self._share: float | None = None

    def fill(self, question: Question, room: int, seed: str) -> list[int]:
        """Documents that have between 98 % of `room` and `room` tokens together, written as one context.

        A document's tokens are counted once, by itself. What the seams between documents change is measured on the
        first sample, and the others are taken to be like it.

        Args:
            question: its own documents are among them, those of its article before any others.
            room: tokens.
            seed: names the draw.

        Returns:
            Places in the pool, in the order that they stand in.

        Raises:
            EvalError: the pool has too few documents, or none that fit.
        """
        if self._share is None:
            places = self._chosen(question, int(room * MARGIN), seed)
            context = context_of(self._pool.documents[place] for place in places)
            self._share = self._cost(places) / self._tokenizer.count(context)
        budget = int(room * MARGIN * self._share)
        chosen = self._chosen(question, budget, seed)
        tokens = int(self._cost(chosen) / self._share)
        if not SHORTEST * room <= tokens <= room:
            raise self._impossible(tokens, room)
        return shuffled(chosen)

    def _cost(self, places: Iterable[int]) -> int:
        return sum(self._costs[place] for place in places)

    def _chosen(self, question: Question, budget: int, seed: str) -> list[int]:
        """The question's own documents, then as many of the others in a drawn order as fit, then what fits best."""
        rng = random.Random(f"{seed} order")
        near = list(question.near)
        rng.shuffle(near)
        given = len(question.own) + len(near)
        others = drawn(self._pool, question, len(self._pool.documents), seed)[given:]
        chosen, left = list(question.own), budget - self._cost(question.own)
        spared = [*near, *others]
        while spared and self._costs[spared[0]] <= left:
            left -= self._costs[spared[0]]
            chosen.append(spared.pop(0))
        fixed = given if len(chosen) > given else len(question.own)
        return self._fitted(chosen, spared, left, fixed)

    def _fitted(self, chosen: list[int], spared: list[int], left: int, fixed: int) -> list[int]:
        """Add the largest spared document that fits, again and again; then change one chosen for a larger spared one.

        Args:
            chosen: documents, of which the first `fixed` stay.
            spared: those that are not taken.
            left: tokens that are free.
            fixed: the question's own, and those of its article where there are others.
        """
        by_cost = sorted((self._costs[place], place) for place in spared)
        while at := bisect_right(by_cost, (left, len(self._costs))):
            cost, place = by_cost.pop(at - 1)
            chosen.append(place)
            left -= cost
        changes = [(0, 0, -1)]
        for number in range(fixed, len(chosen)):
            cost = self._costs[chosen[number]]
            if at := bisect_right(by_cost, (cost + left, len(self._costs))):
                larger, place = by_cost[at - 1]
                changes.append((larger - cost, number, place))
        gain, number, place = max(changes)
        return [*chosen[:number], place, *chosen[number + 1 :]] if gain > 0 else chosen

    def _impossible(self, had: int, room: int) -> EvalError:
        found = f"of {len(self._pool.documents):,} documents a context of {had:,} tokens can be made"
        return EvalError(
            found, expected=f"{SHORTEST:.0%} of {room:,} or more, and no more", todo="Leave this length out."
        )
