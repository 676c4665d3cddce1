"""What a method finds out about tensors while it merges them, on its way to the record.

A method that looks at a whole matrix knows things of it that no second look would show as cheaply: its rank, or how
narrowly a choice was made. It tells them by `report`; the engine, which holds `collecting` open around each stack,
keeps them as the answer to `Reported()`, so that they are saved and resumed like any other answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from agentmerge.survey.answers import Answers, Gathered
from agentmerge.survey.statistic import AfterStatistic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.kernels import Backend
    from agentmerge.tensors import Array, Cast, Stack

Facts = dict[str, dict[str, float]]
"""By kind, and then by the place that it is true of: a number."""

_OPEN: ContextVar[Facts | None] = ContextVar("_OPEN", default=None)


def report(kind: str, place: str, value: float) -> None:
    """Tell a fact, where somebody listens.

    Args:
        kind: what is told.
        place: of which matrix; each is told once of a place.
        value: the number.
    """
    facts = _OPEN.get()
    if facts is not None:
        facts.setdefault(kind, {})[place] = float(value)


@contextmanager
def collecting() -> Iterator[Facts]:
    """What is reported meanwhile, by this thread."""
    facts: Facts = {}
    before = _OPEN.set(facts)
    try:
        yield facts
    finally:
        _OPEN.reset(before)


class FactsOf(Gathered[Facts]):
    """Answers are facts of different places."""

    def gather(self, answers: Sequence[Facts]) -> Facts:
        """All of them, in the order of their names."""
        told: Facts = {}
        for facts in answers:
            for kind, places in facts.items():
                told.setdefault(kind, {}).update(places)
        return {kind: dict(sorted(told[kind].items())) for kind in sorted(told)}

    def encode(self, answer: Facts) -> Any:
        """As it is."""
        return answer

    def decode(self, data: Any) -> Facts:
        """What `encode` wrote."""
        return {str(kind): {str(place): float(value) for place, value in told.items()} for kind, told in data.items()}


@dataclass(frozen=True)
class Reported(AfterStatistic[Facts]):
    """What the methods reported while they merged."""

    answers: ClassVar[Answers[Facts]] = FactsOf()

    def observe(self, stack: Stack, merged: Array, stored: Array, cast: Cast) -> Facts:
        """Nothing: results do not show it, and the engine puts what was collected in its place."""
        return {}

    def kernel(self, stack: Stack, stored: Array, kernels: Backend) -> Facts:
        """As `observe`."""
        return {}
