"""Float sums as integers: each leaf's sum rounded once to a multiple of 2^-72, and those added exactly.

So they are the same for any block size and worker count, and a sum over millions of leaves is one integer; TreeSums
keep the nodes of every tensor instead, which methods may feed on and reports need not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from agentmerge.tensors import Array

WHOLE, PART = 20, 52
"""A leaf's sum is high * 2^-20 + low * 2^-72; together within 2^-73 of it."""
_MOST = 2.0**61


def fixed_sums(leaves: Array) -> tuple[int, ...]:
    """float64 [leaves, rows] to the exact sum over the leaves, an integer of 2^-72 per row.

    What is not finite counts as 0 and what is too large as 2^41; Integrity tells of such inputs.
    """
    scaled = np.clip(np.nan_to_num(leaves, nan=0.0, posinf=_MOST, neginf=-_MOST) * 2.0**WHOLE, -_MOST, _MOST)
    high = np.floor(scaled)
    low = np.rint((scaled - high) * 2.0**PART)
    return tuple((h << PART) + x for h, x in zip(_exact(high), _exact(low), strict=True))


def _exact(values: Array) -> list[int]:
    """The sum of each column of whole numbers below 2^62, in halves of 31 bits so that int64 holds it."""
    whole = values.astype(np.int64)
    upper, lower = (whole >> 31).sum(axis=0).tolist(), (whole & (1 << 31) - 1).sum(axis=0).tolist()
    return [(u << 31) + x for u, x in zip(upper, lower, strict=True)]


def value_of(total: int) -> float:
    """The sum as a float64."""
    return float(total / 2 ** (WHOLE + PART))
