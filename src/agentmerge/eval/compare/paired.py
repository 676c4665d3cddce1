"""Scores and differences of rows in every unit, each computed once: what tables and the verdict ask."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.eval.compare.estimates import Estimate, covariance, error, estimate, mean_of
from agentmerge.eval.compare.resampled import bootstrap, drawn_signs, interval, p_value, swapped
from agentmerge.eval.compare.retained import fieller
from agentmerge.eval.compare.rows import DifferenceRow, RetentionRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.compare.asked import Asked, Values
    from agentmerge.eval.compare.estimates import Place
    from agentmerge.eval.compare.resampled import Signs
    from agentmerge.eval.compare.rows import UnitRow


class Paired:
    """Rows that were asked the same items."""

    def __init__(
        self,
        asked: Mapping[str, Asked],
        places: Sequence[Place],
        units: Sequence[UnitRow],
        *,
        seed: int,
        draws: int,
        swaps: int,
    ) -> None:
        """See the class.

        Args:
            asked: by suite.
            places: every column.
            units: whose columns are among them.
            seed: of both kinds of draws.
            draws: of the bootstrap.
            swaps: of the swap test.
        """
        self.asked = asked
        self.units = {unit.id: unit for unit in units}
        self._places = {place.id: place for place in places}
        self._seed, self._draws, self._swaps = seed, draws, swaps
        self._estimates: dict[tuple[str, str], Estimate | None] = {}
        self._signs: dict[str, Signs] = {}
        self._differences: dict[tuple[str, str], dict[str, DifferenceRow]] = {}

    def estimate(self, row: str, unit: str) -> Estimate | None:
        """A row's mean of a unit; None where it lacks one of its columns."""
        if (row, unit) not in self._estimates:
            found = [self._column(row, name) for name in self.units[unit].columns]
            self._estimates[row, unit] = None if None in found else mean_of([one for one in found if one is not None])
        return self._estimates[row, unit]

    def error(self, of: Estimate) -> float:
        """Its standard error."""
        return error(of, self.asked)

    def differences(self, row: str, other: str) -> dict[str, DifferenceRow]:
        """The row less the other one, in every unit that both have."""
        if (row, other) not in self._differences:
            drawn = self._drawn_columns(row, other)
            found = {unit: self._difference(row, other, unit, drawn) for unit in self.units}
            self._differences[row, other] = {unit: one for unit, one in found.items() if one is not None}
        return self._differences[row, other]

    def retention(self, merged: str, agent: str, base: str, skill: UnitRow) -> RetentionRow | None:
        """What a merge keeps of what an agent gained in a skill; None where one of the three lacks it."""
        three = [self.estimate(row, skill.id) for row in (merged, agent, base)]
        if any(one is None for one in three):
            return None
        of_merge, of_agent, of_base = (one for one in three if one is not None)
        kept, gained = of_merge - of_base, of_agent - of_base
        variances = covariance(kept, kept, self.asked), covariance(gained, gained, self.asked)
        found = fieller(kept.mean, gained.mean, variances, covariance(kept, gained, self.asked))
        if gained.mean <= 0:
            found = None
        value, low, high = found or (None, None, None)
        return RetentionRow(
            merged=merged, agent=agent, skill=skill.skill, gained=gained.mean, kept=kept.mean,
            value=value, low=low, high=high,
        )  # fmt: skip

    def _column(self, row: str, name: str) -> Estimate | None:
        place = self._places[name]
        asked = self.asked[place.suite]
        if row not in asked.rows or place.facts.metric not in asked.values:
            return None
        return estimate(place, asked, row)

    def _difference(self, row: str, other: str, unit: str, drawn: Mapping[str, Values]) -> DifferenceRow | None:
        mine, theirs = self.estimate(row, unit), self.estimate(other, unit)
        if mine is None or theirs is None:
            return None
        difference, columns = mine - theirs, self.units[unit].columns
        resampled = np.mean([self._resampled[row, name] - self._resampled[other, name] for name in columns], axis=0)
        low, high = interval(resampled)
        return DifferenceRow(
            row=row, against=other, unit=unit, value=difference.mean, error=self.error(difference), low=low, high=high,
            p=p_value(difference.mean, np.mean([drawn[name] for name in columns], axis=0)),
        )  # fmt: skip

    @cached_property
    def _resampled(self) -> dict[tuple[str, str], Values]:
        found: dict[tuple[str, str], Values] = {}
        for suite, asked in self.asked.items():
            own = [place for place in self._places.values() if place.suite == suite]
            found |= bootstrap(own, asked, self._seed, self._draws)
        return found

    def _drawn_columns(self, row: str, other: str) -> dict[str, Values]:
        found = {}
        for name, place in self._places.items():
            asked = self.asked[place.suite]
            if row in asked.rows and other in asked.rows:
                if place.suite not in self._signs:
                    self._signs[place.suite] = drawn_signs(asked, self._seed, self._swaps)
                found[name] = swapped(place, asked, (row, other), self._signs[place.suite])
        return found
