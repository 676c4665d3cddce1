"""Counts, histograms and float sums over one stack. See Backend for what each answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.arguments import LOW_BITS, WIDTH, Sums, rows, scratch, spans
from agentmerge.kernels.formulas import typed
from agentmerge.tensors import LEAF, RUNNING, Array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.kernels.arguments import Sources
    from agentmerge.kernels.formulas import Shared
    from agentmerge.tensors import Stack

    SumLoop = Callable[[Sources, int, Sums], None]


def count(stack: Stack, threshold: float, key: int) -> tuple[Array, Array, Array, Array, Array]:
    """See Backend.count."""
    from agentmerge.kernels.cpu.loops import count as loops

    agents = len(stack.agents)
    counts, found = _overlap(agents), _integrity(1 + agents)
    for sources, size, at in spans(stack.base, stack.agents):
        loops.count(sources, size, threshold, key, stack.block.start + at, *counts, *found)
    return *counts, *found


def overlap(stack: Stack, threshold: float) -> tuple[Array, Array]:
    """See Backend.overlap."""
    from agentmerge.kernels.cpu.loops import count as loops

    counts = _overlap(len(stack.agents))
    for sources, size, _ in spans(stack.base, stack.agents, stack.tau):
        loops.count(sources, size, threshold, 0, 0, *counts, *_integrity(0))
    return counts


def integrity(stack: Stack, key: int) -> tuple[Array, Array, Array]:
    """See Backend.integrity."""
    from agentmerge.kernels.cpu.loops import count as loops

    found = _integrity(1 + len(stack.agents))
    for sources, size, at in spans(stack.base, stack.agents):
        loops.integrity(sources, size, key, stack.block.start + at, *found)
    return found


def magnitudes(stack: Stack, bins: Sequence[int] | None = None) -> Array:
    """See Backend.magnitudes."""
    from agentmerge.kernels.cpu.loops import rank as loops

    agents, bits = len(stack.agents), 31 - LOW_BITS if bins is None else LOW_BITS
    chosen = np.zeros(agents, np.int64) if bins is None else np.array(bins, np.int64)
    counts, room = np.zeros((agents, 1 << bits), np.int64), np.zeros((1, WIDTH), np.uint32)
    for sources, size, _ in spans(stack.base, stack.agents, stack.tau):
        if bins is None:
            loops.high(sources, size, room[0], rows(room)[0], counts)
        else:
            loops.low(sources, size, room[0], rows(room)[0], chosen, counts)
    counts[:, 0] -= (chosen == 0) * (-stack.base.size % WIDTH)  # the padding
    return counts


def signs(stack: Stack, weight: Array, limit: Array) -> tuple[int, int]:
    """See Backend.signs."""
    from agentmerge.kernels.cpu.loops import rank as loops

    counts, room = np.zeros(2, np.int64), scratch(len(stack.agents))
    for sources, size, _ in spans(stack.base, stack.agents, stack.tau):
        loops.signs(sources, rows(room), size, weight, limit, counts)
    return int(counts[0]), int(counts[1])


def squares(arrays: Sequence[Array]) -> Array:
    """See Backend.squares."""
    from agentmerge.kernels.cpu.loops import sums as loops

    return _summed(arrays[0], (), None, arrays, len(arrays), loops.squares)


def retention(stack: Stack, merged: Array) -> Array:
    """See Backend.retention."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, room = len(stack.agents), scratch(len(stack.agents))

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.retention(sources, rows(room), size, to)

    return _summed(stack.base, stack.agents, stack.tau, (merged,), 2 * agents, fold)


def region_retention(stack: Stack, stored: Array, threshold: float) -> Array:
    """See Backend.region_retention."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, room = len(stack.agents), scratch(len(stack.agents))

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.region_retention(sources, rows(room), size, threshold, to)

    return _summed(stack.base, stack.agents, None, (stored,), 4 * agents, fold)


def energies(stack: Stack, threshold: float, shared: Shared, importance: Sequence[Array] = ()) -> Array:
    """See Backend.energies."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, room, settings = len(stack.agents), scratch(len(stack.agents)), typed(shared)

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.energies(sources, rows(room), size, np.float32(threshold), settings, to)

    return _summed(stack.base, stack.agents, stack.tau, importance, 3 * agents, fold)


def _summed(
    base: Array, agents: Sequence[Array], tau: Array | None, extra: Sequence[Array], width: int, fold: SumLoop
) -> Array:
    """float64 [leaves, width]: a fold over whole leaves, then over the rest."""
    leaves, running = np.empty((-(-base.size // LEAF), width)), np.zeros((width, RUNNING))
    for sources, size, at in spans(base, agents, tau, extra, LEAF):
        fold(sources, size, Sums(running, rows(running), leaves[at // LEAF :]))
    return leaves


def _overlap(agents: int) -> tuple[Array, Array]:
    return np.zeros((agents, agents), np.int64), np.zeros(agents, np.int64)


def _integrity(sources: int) -> tuple[Array, Array, Array]:
    zeros = np.zeros((2, sources), np.int64)
    return zeros[0], zeros[1], np.zeros(sources, np.uint64)
