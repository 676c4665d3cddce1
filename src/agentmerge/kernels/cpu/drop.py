"""Task vectors of which elements are left out: at random, by rank, by magnitude, by variance."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.arguments import WIDTH, Scratch, address, rows, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Array, Stack


def drop(stack: Stack, keys: Sequence[tuple[int, int]], densities: Sequence[float]) -> Array:
    """See Backend.drop."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size, start = stack.base.size, stack.block.start
    dropped = np.empty((len(stack.agents), size + -size % WIDTH), np.float32)
    draws, last = np.array(keys, np.int64), np.array([ceil(density * 2.0**32) - 1 for density in densities])
    kept = np.array(densities, np.float32)
    for sources, elements, at in spans(stack.base, stack.agents, stack.tau):
        out = rows(dropped[:, at : at + elements])
        loops.drop(sources, elements, draws, last, kept, start + at, out)
    return dropped[:, :size]


def trim(stack: Stack, low: Array, high: Array, factor: Array) -> Array:
    """See Backend.trim."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size = stack.base.size
    kept = np.empty((len(stack.agents), size + -size % WIDTH), np.float32)
    for sources, elements, at in spans(stack.base, stack.agents, stack.tau):
        loops.trim(sources, elements, low, high, factor, rows(kept[:, at : at + elements]))
    return kept[:, :size]


def variances(stack: Stack) -> Array:
    """See Backend.variances."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size, scratch = stack.base.size, Scratch.of(len(stack.agents))
    found = np.empty(size + -size % WIDTH, np.float32)
    for sources, elements, at in spans(stack.base, stack.agents, stack.tau):
        loops.variances(sources, scratch, elements, address(found[at:]))
    return found[:size]


def select(stack: Stack, limit: float) -> Array:
    """See Backend.select."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size, scratch = stack.base.size, Scratch.of(len(stack.agents))
    kept = np.empty((len(stack.agents), size + -size % WIDTH), np.float32)
    for sources, elements, at in spans(stack.base, stack.agents, stack.tau):
        loops.select_varying(sources, scratch, elements, np.float32(limit), rows(kept[:, at : at + elements]))
    return kept[:, :size]


def prune(tau: Array, columns: int, probability: Array, divisor: Array, key: tuple[int, int], start: int) -> Array:
    """See Backend.prune."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size = tau.size + -tau.size % WIDTH
    values, kept = np.zeros(size, np.float32), np.empty(size, np.float32)
    values[: tau.size] = tau
    last = (np.ceil(probability * 2.0**32) - 1).astype(np.uint32)
    order, counts = np.empty((2, columns), np.uint32), np.zeros(loops.KEYS_AT_ONCE, np.int64)
    lasts, divisors = np.zeros(size, np.uint32), np.ones(size, np.float32)
    loops.rank_rows(values.view(np.uint32), tau.size, order, counts, last, divisor, lasts, divisors)
    addresses = np.array([address(array) for array in (values, lasts, divisors, kept)], np.int64)
    loops.prune(addresses, size, *key, start)
    return kept[: tau.size]
