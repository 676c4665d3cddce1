"""How much of what an agent gained a merge keeps: (merged - base) / (agent - base), with Fieller's interval.

A quotient of two uncertain numbers has no standard error worth the name where the lower one may be 0. Fieller's
interval is the set of all r for which merged - base - r (agent - base) is not told from 0. It is bounded exactly where
the agent's gain is told from 0 at the same level; where it is not, there is nothing to keep, and no number is given.

Reference: Fieller, Some problems in interval estimation (1954).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from agentmerge.eval.statistics import Z


class Quotient(NamedTuple):
    """A quotient and its interval."""

    value: float
    low: float
    high: float


def fieller(upper: float, lower: float, variances: tuple[float, float], covariance: float) -> Quotient | None:
    """The quotient upper / lower with a 95 % interval; None where it is not bounded, as `lower` may be 0.

    (upper - r lower)^2 <= z^2 (var upper - 2 r cov + r^2 var lower), solved for r.

    Args:
        upper: of the quotient.
        lower: of the quotient.
        variances: of both.
        covariance: of the two.
    """
    a = lower**2 - Z**2 * variances[1]
    if a <= 0:
        return None
    b = upper * lower - Z**2 * covariance
    c = upper**2 - Z**2 * variances[0]
    root = math.sqrt(max(b * b - a * c, 0.0))
    return Quotient(upper / lower, (b - root) / a, (b + root) / a)
