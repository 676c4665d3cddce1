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
    groups = cells_of(column, scores)
    n = sum(len(cells) for cells in groups.values())
    if not n:
        return Summary(n=0, mean=None, error=None, interval=None, interval_from=None)
    parts = [np.array(cells, dtype=np.float64) for cells in groups.values()]  # each [n, 2]: value, weight
    mean, error = _mean_and_error(parts)
    if all(_is_share(part) for part in parts) and len(parts) == 1:
        return Summary(n=n, mean=mean, error=error, interval=wilson(mean, n), interval_from="wilson")
    return Summary(n=n, mean=mean, error=error, interval=_bootstrap(parts), interval_from="bootstrap")


def cells_of(column: Column, scores: Iterable[tuple[str, Mapping[str, Cell]]]) -> dict[str, list[Cell]]:
    """The cells that count for a column, by group; in one list where items of all groups count the same."""
    found: dict[str, list[Cell]] = {}
    for group, metrics in scores:
        if column.metric in metrics and (not column.groups or group in column.groups):
            cell = metrics[column.metric]
            if cell.weight > 0:
                found.setdefault(group if column.combine == "groups" else "", []).append(cell)
    return found


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share of n: unlike mean +- 1.96 errors it says something at 0 and 1."""
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean_and_error(parts: Sequence[Values]) -> tuple[float, float | None]:
    """Of a plain mean of ratios of sums; the error is that of ratio estimates, by linearisation."""
    means = [float(part[:, 0] @ part[:, 1] / part[:, 1].sum()) for part in parts]
    mean = sum(means) / len(means)
    if any(len(part) < 2 for part in parts):
        return mean, None
    variance = sum(_variance(part, own) for part, own in zip(parts, means, strict=True))
    return mean, math.sqrt(variance) / len(parts)


def _variance(part: Values, mean: float) -> float:
    """N / (n - 1) sum of (weight (value - mean))^2 / (sum of weights)^2."""
    n = len(part)
    residuals = part[:, 1] * (part[:, 0] - mean)
    return float(n / (n - 1) * (residuals @ residuals) / part[:, 1].sum() ** 2)


def _is_share(part: Values) -> bool:
    return bool(np.isin(part[:, 0], (0.0, 1.0)).all() and (part[:, 1] == part[0, 1]).all())


def _bootstrap(parts: Sequence[Values]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    means = np.zeros(RESAMPLES)
    for part in parts:
        for start in range(RESAMPLES):
            drawn = part[rng.integers(0, len(part), len(part))]
            means[start] += drawn[:, 0] @ drawn[:, 1] / drawn[:, 1].sum() / len(parts)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
