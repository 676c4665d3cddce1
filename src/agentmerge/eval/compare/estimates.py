"""Means of columns and of sets of columns, and their errors by linearisation: what each item adds to them.

A column is sum(weight x value) / sum(weight) over the items of its groups, or the plain mean of that over the groups.
Its *influence* is what item i moves it by, `weight_i (value_i - mean) / sum(weight)`; a difference or a mean of
columns has the difference or the mean of their influences, whether they share items or not. So one formula gives the
variance of each of them and the covariance of any two:

    sum over groups g of n_g / (n_g - 1) x sum over items i of g of (x_i - mean_g x) (y_i - mean_g y)

Items are drawn within their groups, whose sizes a benchmark fixes. A group of one item, which says nothing of its own
spread, is compared with the whole: its term is x_i y_i.

Reference: Sarndal, Swensson, Wretman, Model Assisted Survey Sampling (1992), 5.5 and 5.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.compare.asked import Asked, Values
    from agentmerge.eval.record import ColumnFacts


@dataclass(frozen=True)
class Place:
    """A column of a suite."""

    suite: str
    name: str
    facts: ColumnFacts

    @property
    def id(self) -> str:
        """As tables, JSON and options call it."""
        return f"{self.suite}.{self.name}"


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of means, and what every item adds to it."""

    mean: float
    influence: Mapping[str, Values]
    """By suite [items]."""

    def __sub__(self, other: Estimate) -> Estimate:
        influence = dict(self.influence)
        for suite, array in other.influence.items():
            influence[suite] = influence[suite] - array if suite in influence else -array
        return Estimate(self.mean - other.mean, influence)


def estimate(place: Place, asked: Asked, row: str) -> Estimate | None:
    """One column of one row; None where nothing counts."""
    values, weights = (arrays[place.facts.metric][asked.rows.index(row)] for arrays in (asked.values, asked.weights))
    influence, means = np.zeros(asked.items), []
    for part in parts(place, asked):
        total = weights[part].sum()
        if total > 0:
            mean = float(weights[part] @ values[part] / total)
            influence[part] = weights[part] * (values[part] - mean) / total
            means.append(mean)
    if not means:
        return None
    return Estimate(math.fsum(means) / len(means), {asked.suite: influence / len(means)})


def parts(place: Place, asked: Asked) -> list[Values]:
    """The items [n] whose means a column is the plain mean of: one set of them, or one for each group."""
    chosen = [name for name in asked.groups if not place.facts.groups or name in place.facts.groups]
    every = [np.arange(asked.groups[name].start, asked.groups[name].stop) for name in chosen]
    if place.facts.metric not in asked.values:
        return []
    return every if place.facts.combine == "groups" else [np.concatenate(every)] if every else []


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The plain mean of several columns."""
    influence: dict[str, Values] = {}
    for one in estimates:
        for suite, array in one.influence.items():
            mine = array / len(estimates)
            influence[suite] = influence[suite] + mine if suite in influence else mine
    return Estimate(math.fsum(one.mean for one in estimates) / len(estimates), influence)


def covariance(left: Estimate, right: Estimate, asked: Mapping[str, Asked]) -> float:
    """Of two estimates over the same draw of items, see the head of this file."""
    return math.fsum(
        _term(left.influence[suite][part], right.influence[suite][part])
        for suite in left.influence
        if suite in right.influence
        for part in asked[suite].groups.values()
    )


def error(of: Estimate, asked: Mapping[str, Asked]) -> float:
    """Standard error."""
    return math.sqrt(max(covariance(of, of, asked), 0.0))


def _term(x: Values, y: Values) -> float:
    if len(x) < 2:
        return float(x @ y)
    return float(len(x) / (len(x) - 1) * ((x - x.mean()) @ (y - y.mean())))
