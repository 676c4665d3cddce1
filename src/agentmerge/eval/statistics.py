"""What the scores of items say of a column: mean, standard error and a 95 % interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentmerge.frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.eval.suite import Cell, Column

Values = NDArray[np.float64]
RESAMPLES = 2000
"""Of a bootstrap interval."""
Z = 1.959963984540054
"""Half the width of a 95 % interval in standard errors."""


class Summary(Frozen):
    """A column of one model."""

    n: int
    """Items that count."""
    mean: float | None
    """None where nothing counts."""
    error: float | None
    """Standard error of the mean; None of fewer than two items."""
    interval: tuple[float, float] | None
    """95 %."""
    interval_from: Literal["wilson", "bootstrap"] | None
    """Wilson's score interval where every item is right or wrong and weighs the same, else percentiles of means of
    items resampled within their groups."""


def summary(column: Column, scores: Sequence[tuple[str, Mapping[str, Cell]]]) -> Summary:
    """A column's mean over items.

    Args:
        column: which metric over which groups.
        scores: of each item its group and its cells by metric.
    """
    groups = [np.array(cells, dtype=np.float64) for cells in cells_of(column, scores).values()]  # [n, 2]: value, weight
    n = sum(len(group) for group in groups)
    if not n:
        return Summary(n=0, mean=None, error=None, interval=None, interval_from=None)
    parts = [[group] for group in groups] if column.combine == "groups" else [groups]
    mean, error = _mean_and_error(parts)
    if len(parts) == 1 and _is_share(np.concatenate(groups)):
        return Summary(n=n, mean=mean, error=error, interval=wilson(mean, n), interval_from="wilson")
    return Summary(n=n, mean=mean, error=error, interval=_bootstrap(parts), interval_from="bootstrap")


def cells_of(column: Column, scores: Iterable[tuple[str, Mapping[str, Cell]]]) -> dict[str, list[Cell]]:
    """The cells that count for a column, by group."""
    found: dict[str, list[Cell]] = {}
    for group, metrics in scores:
        if column.metric in metrics and (not column.groups or group in column.groups):
            cell = metrics[column.metric]
            if cell.weight > 0:
                found.setdefault(group, []).append(cell)
    return found


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share of n: unlike mean +- 1.96 errors it says something at 0 and 1."""
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean_and_error(parts: Sequence[Sequence[Values]]) -> tuple[float, float | None]:
    """Of a plain mean of ratios of sums; the error is that of ratio estimates, by linearisation, within groups.

    Args:
        parts: of which the plain mean is taken, each the groups that items are drawn in [n, 2].
    """
    means = [_ratio(part) for part in parts]
    mean = sum(means) / len(means)
    if any(sum(len(group) for group in part) < 2 for part in parts):
        return mean, None
    variance = sum(_variance(part, own) for part, own in zip(parts, means, strict=True))
    return mean, math.sqrt(variance) / len(parts)


def _ratio(groups: Sequence[Values]) -> float:
    """Sum(value x weight) / sum(weight)."""
    return float(sum(group[:, 0] @ group[:, 1] for group in groups) / sum(group[:, 1].sum() for group in groups))


def _variance(groups: Sequence[Values], mean: float) -> float:
    """Sum over groups of n / (n - 1) sum of (x - mean of the group's x)^2, with x = weight (value - mean) / weights.

    A group of one item, which says nothing of its own spread, adds x^2, as in compare/estimates.py.
    """
    total = sum(group[:, 1].sum() for group in groups)
    variance = 0.0
    for group in groups:
        x, n = group[:, 1] * (group[:, 0] - mean) / total, len(group)
        off = x - x.mean() if n > 1 else x
        variance += float(off @ off) * n / max(n - 1, 1)
    return variance


def _is_share(part: Values) -> bool:
    return bool(np.isin(part[:, 0], (0.0, 1.0)).all() and (part[:, 1] == part[0, 1]).all())


def _bootstrap(parts: Sequence[Sequence[Values]]) -> tuple[float, float]:
    """Percentiles of the mean of items drawn with replacement within their groups; rounding leaves no score's range."""
    rng = np.random.default_rng(0)
    means = np.zeros(RESAMPLES)
    for part in parts:
        sums = np.zeros((RESAMPLES, 2))
        for group in part:
            worth = np.column_stack([group[:, 0] * group[:, 1], group[:, 1]])
            for start in range(RESAMPLES):
                sums[start] += worth[rng.integers(0, len(worth), len(worth))].sum(axis=0)
        means += sums[:, 0] / sums[:, 1] / len(parts)
    low, high = np.clip(np.quantile(means, [0.025, 0.975]), 0.0, 1.0)
    return float(low), float(high)
