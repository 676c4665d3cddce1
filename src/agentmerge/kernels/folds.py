"""The fused kernels for CPUs that fold: counts, histograms and float sums, equal to their definitions bit for bit.

One pass over memory each. numba is imported at the first call. Knows no statistics and no methods: plain arrays in
and out. Everywhere:

    base     [n], stored dtype
    agents   [n] each, stored dtypes in any mix
    tau      float32 [agents, n], task vectors that a wrapping method made; None: the agents' own
    start    flat index of base[0] in its tensor, a multiple of 4, for sums of LEAF
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.call import LANES, Rule, pieces, rows
from agentmerge.tensors import LEAF, Array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.kernels.call import Sources


def count(
    base: Array, agents: Sequence[Array], threshold: float, key: int, start: int
) -> tuple[Array, Array, Array, Array, Array]:
    """survey.Overlap and survey.Integrity in one pass; `key`: 32 bits, of the tensor's fingerprint.

    Returns:
        exactly int64 [agents, agents], different int64 [agents], nan and inf int64 [1 + agents], fingerprint uint64
        [1 + agents].
    """
    from agentmerge.kernels import counting

    counts, found = _overlap(len(agents)), _integrity(1 + len(agents))
    for sources, size, at in pieces(base, agents):
        counting.count(sources, size, threshold, key, start + at, *counts, *found)
    return *counts, *found


def overlap(base: Array, agents: Sequence[Array], threshold: float, tau: Array | None = None) -> tuple[Array, Array]:
    """survey.Overlap alone: exactly int64 [agents, agents], different int64 [agents]."""
    from agentmerge.kernels import counting

    counts = _overlap(len(agents))
    for sources, size, _ in pieces(base, agents, tau):
        counting.count(sources, size, threshold, 0, 0, *counts, *_integrity(0))
    return counts


def integrity(base: Array, agents: Sequence[Array], key: int, start: int) -> tuple[Array, Array, Array]:
    """survey.Integrity alone: nan and inf int64 [1 + agents], fingerprint uint64 [1 + agents]; see `count`."""
    from agentmerge.kernels import counting

    found = _integrity(1 + len(agents))
    for sources, size, at in pieces(base, agents):
        counting.integrity(sources, size, key, start + at, *found)
    return found


def magnitudes(
    base: Array, agents: Sequence[Array], tau: Array | None = None, bins: Sequence[int] | None = None
) -> Array:
    """survey.MagnitudeHigh, or MagnitudeLow within each agent's bin: counts int64 [agents, 2^16 or 2^15]."""
    from agentmerge.kernels import ranking

    chosen = np.zeros(len(agents), np.int64) if bins is None else np.array(bins, np.int64)
    bits = 31 - ranking.LOW_BITS if bins is None else ranking.LOW_BITS
    counts, room = np.zeros((len(agents), 1 << bits), np.int64), np.zeros((1, LANES), np.uint32)
    for sources, size, _ in pieces(base, agents, tau):
        if bins is None:
            ranking.high(sources, size, room[0], rows(room)[0], counts)
        else:
            ranking.low(sources, size, room[0], rows(room)[0], chosen, counts)
    counts[:, 0] -= (chosen == 0) * (-base.size % LANES)  # the padding
    return counts


def signs(
    base: Array, agents: Sequence[Array], weight: Array, limit: Array, tau: Array | None = None
) -> tuple[int, int]:
    """methods.ties.ElectedSigns: how many elements elected + and how many -; an empty limit trims nothing."""
    from agentmerge.kernels import ranking

    counts, scratch = np.zeros(2, np.int64), _scratch(agents)
    for sources, size, _ in pieces(base, agents, tau):
        ranking.signs(sources, rows(scratch), size, weight, limit, counts)
    return int(counts[0]), int(counts[1])


def squares(arrays: Sequence[Array]) -> Array:
    """methods.fisher.ImportanceNorm: sums of squares, float64 [leaves, arrays]."""
    from agentmerge.kernels import summing

    return _summed(arrays[0], (), None, arrays, len(arrays), summing.squares)


def retention(base: Array, agents: Sequence[Array], merged: Array, tau: Array | None = None) -> Array:
    """survey.retention_sums of `merged`, any stored dtype: float64 [leaves, 2 * agents]."""
    from agentmerge.kernels import summing

    scratch = _scratch(agents)

    def fold(sources: Sources, size: int, *to: Array) -> None:
        summing.retention(sources, rows(scratch), size, *to)

    return _summed(base, agents, tau, (merged,), 2 * len(agents), fold)


def energies(
    base: Array, agents: Sequence[Array], rule: Rule, tau: Array | None = None, importance: Sequence[Array] = ()
) -> Array:
    """methods.energies.Energies of a rule RAM_FIELDS: float64 [leaves, 3 * agents]."""
    from agentmerge.kernels import summing

    scratch, typed = _scratch(agents), rule.typed()
    settings = (typed.threshold, typed.weight, typed.choice, typed.power, typed.table)

    def fold(sources: Sources, size: int, *to: Array) -> None:
        summing.energies(sources, rows(scratch), size, *settings, *to)

    return _summed(base, agents, tau, importance, 3 * len(agents), fold)


def _summed(
    base: Array,
    agents: Sequence[Array],
    tau: Array | None,
    extra: Sequence[Array],
    width: int,
    fold: Callable[..., None],
) -> Array:
    """float64 [leaves, width]: a fold over whole leaves, then over the rest."""
    sums, running = np.empty((-(-base.size // LEAF), width)), np.zeros((width, LANES))
    for sources, size, at in pieces(base, agents, tau, extra, LEAF):
        fold(sources, size, running, rows(running), sums[at // LEAF :])
    return sums


def _overlap(agents: int) -> tuple[Array, Array]:
    return np.zeros((agents, agents), np.int64), np.zeros(agents, np.int64)


def _integrity(sources: int) -> tuple[Array, Array, Array]:
    zeros = np.zeros((2, sources), np.int64)
    return zeros[0], zeros[1], np.zeros(sources, np.uint64)


def _scratch(agents: Sequence[Array]) -> Array:
    return np.empty((len(agents), LANES), np.float32)
