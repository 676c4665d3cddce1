"""What overlap chance would give agents that change elements independently.

A stratum is a set of elements in which each agent's changes are spread at random: the model, or the weights of one
size in one module.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from agentmerge.tensors import Array


class Chance(NamedTuple):
    """The overlap of two agents against chance."""

    expected: float
    ratio: float | None
    z: float | None


def against_chance(overlap: float, elements: Array, left: Array, right: Array) -> Chance:
    """Expected = sum of left * right / elements; the variance is the hypergeometric one, added over the strata.

    Args:
        overlap: elements that both changed.
        elements: [strata].
        left: [strata], elements that one agent changed.
        right: [strata], elements that the other changed.
    """
    n = elements[elements > 0].astype(np.float64)
    a, b = (found[elements > 0].astype(np.float64) for found in (left, right))
    expected = float((a * b / n).sum())
    variance = float((a * b * (n - a) * (n - b) / (n * n * np.maximum(n - 1, 1))).sum())
    z = (overlap - expected) / sqrt(variance) if variance > 0 else None
    return Chance(expected, overlap / expected if expected else None, z)


def expected_exactly(elements: Array, changed: Array) -> Array:
    """Of agent t's changed elements those that k + 1 agents change by chance, float64 [t, k].

    Args:
        elements: [strata].
        changed: [t, strata].
    """
    agents = len(changed)
    density = changed / np.maximum(elements, 1)
    found = np.zeros((agents, agents))
    for t in range(agents):
        others = np.zeros((agents, elements.size))  # probability that k of the others change an element
        others[0] = 1.0
        for s in range(agents):
            if s != t:
                others[1:] = others[1:] * (1 - density[s]) + others[:-1] * density[s]
                others[0] *= 1 - density[s]
        found[t] = others @ changed[t]
    return found
