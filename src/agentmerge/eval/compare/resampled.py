"""Paired resampling: intervals by bootstrap, and how often chance alone gives a difference as large.

Both draw items, never answers of one model alone: in a draw every row has the same items, so what makes an item hard
cancels in a difference, within a suite and in means over suites. Draws are addressed by seed, purpose, suite and group,
so that a row or a suite more changes no other number.

`bootstrap` draws each group's items with replacement, as many as there are. `swap_test` asks what the difference of two
rows would be if it did not matter which of the two gave which answer: at each item, with probability 1/2, both rows
swap all that they got there. The share of draws whose difference is at least as large as the real one is an exact p,
whatever the distribution of scores: with right and wrong answers of one column it is McNemar's test.

Reference: Efron, Tibshirani, An Introduction to the Bootstrap (1993), 13.3; Phipson, Smyth, Permutation p-values should
never be zero (2010); Dror et al., The Hitchhiker's Guide to Testing Statistical Significance in NLP (2018).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentmerge.eval.compare.estimates import parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.eval.compare.asked import Asked, Values
    from agentmerge.eval.compare.estimates import Place

Signs = NDArray[np.bool_]
DRAWS = 2000
"""Of the bootstrap."""
SWAPS = 9999
"""Of the swap test: p is at least 1 / 10,000."""
LEVEL = 0.95
"""Of intervals."""
TIE = 1e-12
"""Differences that far apart are the same number, summed in another order."""


def bootstrap(places: Sequence[Place], asked: Asked, seed: int, draws: int) -> dict[tuple[str, str], Values]:
    """Means of a suite's columns over items drawn again, the same draws for every row.

    Returns:
        By row and the column's id [draws]; NaN where nothing that counts was drawn.
    """
    counts = _counts(asked, seed, draws)
    return {
        (row, place.id): _means(place, asked, counts, asked.values[metric][at], asked.weights[metric][at])
        for place in places
        if (metric := place.facts.metric) in asked.values
        for at, row in enumerate(asked.rows)
    }


def interval(differences: Values) -> tuple[float, float]:
    """Percentiles of what the draws gave."""
    low, high = np.nanquantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def swapped(place: Place, asked: Asked, pair: tuple[str, str], signs: Signs) -> Values:
    """Differences of a column of two rows, the first less the second, after each of the swaps [swaps].

    Args:
        place: the column.
        asked: its suite.
        pair: the rows.
        signs: which items are swapped, see `drawn_signs`.
    """
    if place.facts.metric not in asked.values:
        return np.full(signs.shape[1], np.nan)
    at = [asked.rows.index(row) for row in pair]
    weights = asked.weights[place.facts.metric][at]
    products = asked.values[place.facts.metric][at] * weights
    sides: tuple[list[Values], list[Values]] = ([], [])
    for part in parts(place, asked):
        differing = part[(weights[0, part] != weights[1, part]) | (products[0, part] != products[1, part])]
        moved = signs[differing].astype(np.float64)
        for side in (0, 1):
            if weights[side, part].any():
                sums = [
                    array[side, part].sum() + (array[1 - side, differing] - array[side, differing]) @ moved
                    for array in (products, weights)
                ]
                with np.errstate(invalid="ignore", divide="ignore"):
                    sides[side].append(sums[0] / sums[1])
    return _mean(sides[0], signs.shape[1]) - _mean(sides[1], signs.shape[1])


def drawn_signs(asked: Asked, seed: int, swaps: int) -> Signs:
    """Which items of a suite are swapped: [items, swaps]."""
    parts_of = [
        _rng(seed, "swaps", asked.suite, name).integers(0, 2, (part.stop - part.start, swaps), dtype=np.int8)
        for name, part in asked.groups.items()
    ]
    return np.concatenate(parts_of).astype(np.bool_)


def p_value(real: float, drawn: Values) -> float:
    """The share of draws, the real one among them, that are at least as far from 0 as it."""
    smaller = np.count_nonzero(np.abs(drawn) < abs(real) - TIE)  # a draw without a number speaks against a difference
    return float((1 + len(drawn) - smaller) / (1 + len(drawn)))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p of a family of tests: below a level, they are wrong together with at most that probability.

    The k-th smallest of m is multiplied by m - k + 1, and is at least the one before; it holds whatever the tests have
    to do with each other.

    Reference: Holm, A simple sequentially rejective multiple test procedure (1979).
    """
    adjusted, least = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, p[place] * (len(p) - rank)))
        adjusted[place] = least
    return adjusted


def _rng(seed: int, purpose: str, suite: str, group: str) -> np.random.Generator:
    digest = hashlib.sha256("\x00".join((str(seed), purpose, suite, group)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def _counts(asked: Asked, seed: int, draws: int) -> Values:
    """How often each item was drawn: [draws, items]."""
    parts_of = [
        _rng(seed, "bootstrap", asked.suite, name).multinomial(
            part.stop - part.start, np.full(part.stop - part.start, 1 / (part.stop - part.start)), size=draws
        )
        for name, part in asked.groups.items()
    ]
    return np.concatenate(parts_of, axis=1).astype(np.float64)


def _means(place: Place, asked: Asked, counts: Values, values: Values, weights: Values) -> Values:
    """A column over each draw [draws]; a group of which nothing was drawn that counts is left out of it."""
    means = []
    for part in parts(place, asked):
        if weights[part].any():
            with np.errstate(invalid="ignore"):
                means.append((counts[:, part] @ (weights * values)[part]) / (counts[:, part] @ weights[part]))
    return _mean(means, len(counts))


def _mean(means: Sequence[Values], draws: int) -> Values:
    return np.mean(means, axis=0) if means else np.full(draws, np.nan)
