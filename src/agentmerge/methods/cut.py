"""Where the magnitudes of task vectors are cut, exactly, by two folds: what every method asks that ranks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.methods.making import Made, Maker
from agentmerge.survey.answers import Histogram
from agentmerge.survey.by_tensor import EVERYWHERE, ByTensor
from agentmerge.survey.magnitude import MagnitudeHigh, MagnitudeLow, magnitude, ranked

if TYPE_CHECKING:
    from agentmerge.survey.statistic import Statistic, Survey

Limits = ByTensor[float]
"""The magnitude at which each agent is cut, by tensor or everywhere."""
NOWHERE = Limits()
"""Nobody is cut."""
Rank = Callable[[int, Histogram], int]
"""Of an agent and the upper bits of its magnitudes: the rank of the cut, counted from the smallest; 0 for none."""


@dataclass(frozen=True)
class Cut:
    """The magnitude of one rank per agent, over the whole task vector or tensor by tensor."""

    by_tensor: bool
    rank: Rank
    maker: Maker | None = None
    """Who made the task vectors; None: they are those of the stack."""

    @property
    def high(self) -> MagnitudeHigh:
        """The first question, as it is asked of the task vectors; `asked` is what stands for it in a survey."""
        return MagnitudeHigh(by_tensor=self.by_tensor)

    def low(self, survey: Survey) -> MagnitudeLow:
        """The second question."""
        places = self._places(survey)
        bins = {place: tuple(b for b, _ in self.chosen(high)) for place, high in places.items()}
        return MagnitudeLow(ByTensor(bins))

    def asked(self, question: Statistic[Any]) -> Statistic[Any]:
        """The question of the made task vectors, where they are made."""
        return question if self.maker is None else Made(question, self.maker)

    def ask(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """What must be folded next; () once the cut is known."""
        for question in (lambda: self.high, lambda: self.low(survey)):
            if not survey.knows(asked := self.asked(question())):
                return (asked,)
        return ()

    def chosen(self, high: tuple[Histogram, ...]) -> list[tuple[int, int]]:
        """Per agent, the bin that holds the cut and its rank in there; (-1, 0) where there is none."""
        ranks = [self.rank(t, found) for t, found in enumerate(high)]
        return [ranked(found, k) if k >= 1 else (-1, 0) for k, found in zip(ranks, high, strict=True)]

    def limits(self, survey: Survey) -> Limits:
        """The magnitude at the cut; 0 where there is none."""
        low, limits = self.low(survey), {}
        for place, high in self._places(survey).items():
            found = self._at(place, low, survey)
            limits[place] = tuple(
                magnitude(b, ranked(found[t], rank)[0]) if b >= 0 else 0.0
                for t, (b, rank) in enumerate(self.chosen(high))
            )
        return ByTensor(limits)

    def _places(self, survey: Survey) -> dict[str, tuple[Histogram, ...]]:
        if self.by_tensor:
            return dict(survey.every(self.asked(self.high)))
        return {EVERYWHERE: survey.total(self.asked(self.high))}

    def _at(self, place: str, low: MagnitudeLow, survey: Survey) -> tuple[Histogram, ...]:
        asked = self.asked(low)
        return survey.total(asked) if place == EVERYWHERE else survey.at(place, asked)


def elements_of(found: Histogram) -> int:
    """How many elements were counted."""
    return int(found[1].sum())
