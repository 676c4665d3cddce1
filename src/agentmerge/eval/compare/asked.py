"""The items of one suite with what several models got for them: the same items, or there is no comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentmerge.errors import EvalError, Problem, Where, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.results import ItemScore, Results

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """One suite."""

    suite: str
    rows: tuple[str, ...]
    """The models that were asked it."""
    groups: Mapping[str, slice]
    """By group, in the order of their names, which of the items are its own."""
    values: Mapping[str, Values]
    """By metric [rows, items]; 0 where the metric does not count an item."""
    weights: Mapping[str, Values]
    """By metric [rows, items]; 0 where the metric does not count an item."""

    @property
    def items(self) -> int:
        """How many there are."""
        return max((part.stop for part in self.groups.values()), default=0)


def asked_of(suite: str, results: Mapping[str, Results]) -> Asked:
    """Put the scores of a suite beside each other, items sorted by group and id.

    Args:
        suite: which one.
        results: of the models that have it, by row.

    Raises:
        EvalError: other items or other data in one row than in another, an item twice, or a score that is no number.
    """
    scores = {row: _by_item(found, suite) for row, found in results.items()}
    _check_same(suite, results, scores)
    first = next(iter(scores.values()))
    order = sorted(first, key=lambda item: (first[item].group, item))
    names = [first[item].group for item in order]
    groups = {name: slice(names.index(name), names.index(name) + names.count(name)) for name in sorted(set(names))}
    metrics = sorted({name for items in scores.values() for item in items.values() for name in item.metrics})
    arrays = {metric: _array([[scores[row][item] for item in order] for row in scores], metric) for metric in metrics}
    return Asked(
        suite,
        tuple(scores),
        groups,
        {metric: array[0] for metric, array in arrays.items()},
        {metric: array[1] for metric, array in arrays.items()},
    )


def _by_item(found: Results, suite: str) -> dict[str, ItemScore]:
    items: dict[str, ItemScore] = {}
    where = Where(path=str(found.folder / suite))
    for score in found.scores[suite]:
        if score.item in items:
            raise EvalError(f"{found.folder}: {suite}: item {score.item} is scored twice", where=where)
        for metric, (value, weight) in score.metrics.items():
            if not (_is_finite(value) and _is_finite(weight) and weight >= 0):
                raise EvalError(
                    f"{found.folder}: {suite}: item {score.item}: {metric} is {value!r} of weight {weight!r}",
                    expected="two numbers, the weight not below 0",
                    todo="Score it again: `agentmerge eval ... --score-only`.",
                    where=where,
                )
        items[score.item] = score
    if not items:
        raise EvalError(f"{found.folder}: {suite}: no scores", expected="one line per item", where=where)
    return items


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _check_same(suite: str, results: Mapping[str, Results], scores: Mapping[str, Mapping[str, ItemScore]]) -> None:
    """All rows against the first one."""
    (first, expected), *others = scores.items()
    found = []
    for row, items in others:
        places = {(name, item.group) for name, item in items.items()}
        differing = sorted(places ^ {(name, item.group) for name, item in expected.items()})
        if differing:
            names = list(dict.fromkeys(name for name, _ in differing))
            text = f"{suite}: '{first}' and '{row}' were not asked the same: {len(names)} items differ"
            found.append(_problem(f"{text} ({shortened(names)})", results[row]))
        elif (one := _hashes(results[first], suite)) != (other := _hashes(results[row], suite)):
            files = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
            text = f"{suite}: '{first}' and '{row}' read other data: {shortened(files)} differ"
            found.append(_problem(text, results[row]))
    if found:
        raise EvalError(*found)


def _problem(text: str, results: Results) -> Problem:
    todo = "Evaluate both with the same data and --limit, or leave one out."
    return Problem(text, "the same items in every row", todo, Where(path=str(results.folder)))


def _hashes(results: Results, suite: str) -> dict[str, str]:
    return {data.name: data.sha256 for data in results.record.suites[suite].data}


def _array(rows: Sequence[Sequence[ItemScore]], metric: str) -> Values:
    """[2, rows, items]: values and weights."""
    cells = [[item.metrics.get(metric, (0.0, 0.0)) for item in items] for items in rows]
    array: Values = np.array(cells, dtype=np.float64).transpose(2, 0, 1)
    array[0][array[1] == 0] = 0.0
    return array
