"""Counts, histograms and float sums over one stack. See Backend for what each answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentmerge.kernels.arguments import LOW_BITS, WIDTH, Scratch, Sums, rows, spans
from agentmerge.kernels.formulas import typed
from agentmerge.tensors import LEAF, RUNNING, Array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.kernels.arguments import Sources
    from agentmerge.kernels.formulas import Shared
    from agentmerge.tensors import Stack

    SumLoop = Callable[[Sources, int, Sums], None]


class OverlapTally(NamedTuple):
    """What is counted for Overlap, added to."""

    exactly: Array
    """int64 [agents, agents]"""
    different: Array
    """int64 [agents]"""
    changed: Array
    """Scratch, uint64 [agents, words of a leaf]: who changed an element, as mask words."""
    at_least: Array
    """Scratch, uint64 [agents + 2, words of a leaf]: by how many."""

    @classmethod
    def zero(cls, agents: int, words: int) -> OverlapTally:
        """Nothing counted yet."""
        changed, at_least = np.zeros((agents, words), np.uint64), np.zeros((agents + 2, words), np.uint64)
        at_least[0] = ~np.uint64(0)
        return cls(np.zeros((agents, agents), np.int64), np.zeros(agents, np.int64), changed, at_least)


class IntegrityTally(NamedTuple):
    """What is counted for Integrity, added to: [1 + agents] each, or [0] where it is not asked for."""

    nan: Array
    """int64"""
    inf: Array
    """int64"""
    fingerprint: Array
    """uint64"""

    @classmethod
    def zero(cls, sources: int) -> IntegrityTally:
        """Nothing counted yet."""
        zeros = np.zeros((2, sources), np.int64)
        return cls(zeros[0], zeros[1], np.zeros(sources, np.uint64))


def count(stack: Stack, threshold: float, key: int) -> tuple[Array, Array, Array, Array, Array]:
    """See Backend.count."""
    from agentmerge.kernels.cpu.loops import count as loops

    agents = len(stack.agents)
    overlap, found = OverlapTally.zero(agents, loops.WORDS), IntegrityTally.zero(1 + agents)
    for sources, size, at in spans(stack.base, stack.agents):
        loops.count(sources, size, threshold, key, stack.block.start + at, overlap, found)
    return overlap.exactly, overlap.different, *found


def overlap(stack: Stack, threshold: float) -> tuple[Array, Array]:
    """See Backend.overlap."""
    from agentmerge.kernels.cpu.loops import count as loops

    found = OverlapTally.zero(len(stack.agents), loops.WORDS)
    for sources, size, _ in spans(stack.base, stack.agents, stack.tau):
        loops.count(sources, size, threshold, 0, 0, found, IntegrityTally.zero(0))
    return found.exactly, found.different


def integrity(stack: Stack, key: int) -> tuple[Array, Array, Array]:
    """See Backend.integrity."""
    from agentmerge.kernels.cpu.loops import count as loops

    found = IntegrityTally.zero(1 + len(stack.agents))
    for sources, size, at in spans(stack.base, stack.agents):
        loops.integrity(sources, size, key, stack.block.start + at, found)
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

    counts, scratch = np.zeros(2, np.int64), Scratch.of(len(stack.agents))
    for sources, size, _ in spans(stack.base, stack.agents, stack.tau):
        loops.signs(sources, scratch, size, weight, limit, counts)
    return int(counts[0]), int(counts[1])


def squares(arrays: Sequence[Array]) -> Array:
    """See Backend.squares."""
    from agentmerge.kernels.cpu.loops import sums as loops

    return _summed(arrays[0], (), None, arrays, len(arrays), loops.squares)


def products(stack: Stack) -> Array:
    """See Backend.products."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, scratch = len(stack.agents), Scratch.of(len(stack.agents))

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.products(sources, scratch, size, to)

    return _summed(stack.base, stack.agents, stack.tau, (), agents * (agents + 1) // 2, fold)


def powers(stack: Stack, power: int) -> Array:
    """See Backend.powers."""
    from agentmerge.kernels.cpu.loops import sums as loops

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.powers(sources, size, power, to)

    return _summed(stack.base, stack.agents, stack.tau, (), len(stack.agents), fold)


def retention(stack: Stack, merged: Array) -> Array:
    """See Backend.retention."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, scratch = len(stack.agents), Scratch.of(len(stack.agents))

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.retention(sources, scratch, size, to)

    return _summed(stack.base, stack.agents, stack.tau, (merged,), 2 * agents, fold)


def region_retention(stack: Stack, stored: Array, threshold: float) -> Array:
    """See Backend.region_retention."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, scratch = len(stack.agents), Scratch.of(len(stack.agents))

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.region_retention(sources, scratch, size, threshold, to)

    return _summed(stack.base, stack.agents, None, (stored,), 4 * agents, fold)


def energies(stack: Stack, threshold: float, shared: Shared, importance: Sequence[Array] = ()) -> Array:
    """See Backend.energies."""
    from agentmerge.kernels.cpu.loops import sums as loops

    agents, scratch, settings = len(stack.agents), Scratch.of(len(stack.agents)), typed(shared)

    def fold(sources: Sources, size: int, to: Sums) -> None:
        loops.energies(sources, scratch, size, np.float32(threshold), settings, to)

    return _summed(stack.base, stack.agents, stack.tau, importance, 3 * agents, fold)


def _summed(
    base: Array, agents: Sequence[Array], tau: Array | None, extra: Sequence[Array], width: int, fold: SumLoop
) -> Array:
    """float64 [leaves, width]: a fold over whole leaves, then over the rest."""
    leaves, running = np.empty((-(-base.size // LEAF), width)), np.zeros((width, RUNNING))
    for sources, size, at in spans(base, agents, tau, extra, LEAF):
        fold(sources, size, Sums(running, rows(running), leaves[at // LEAF :]))
    return leaves
