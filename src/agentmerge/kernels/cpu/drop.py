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


def prune(
    stack: Stack,
    columns: int,
    keys: Sequence[tuple[int, int]],
    probability: Sequence[Array],
    divisor: Sequence[Array],
) -> Array:
    """See Backend.prune."""
    from agentmerge.kernels.cpu.loops import drop as loops

    size, start = stack.base.size, stack.block.start
    made = np.empty((len(stack.agents), size + -size % WIDTH), np.float32)
    random, order = np.empty(made.shape[1], np.uint32), np.empty((2, made.shape[1]), np.uint64)
    counts = np.empty(loops.KEYS_AT_ONCE, np.int64)
    for t, values in enumerate(made):
        bits, key, found = values.view(np.uint32), np.array(keys[t], np.int64), np.zeros(2, np.int64)
        given = None if stack.tau is None else stack.tau[t : t + 1]
        for sources, elements, at in spans(stack.base, stack.agents[t : t + 1], given):
            out = np.array([address(values[at:]), address(random[at:])], np.int64)
            loops.draw(sources, elements, start + at, at, bits, key, out, order, found)
        last = (np.ceil(probability[t] * 2.0**32) - 1).astype(np.uint32)
        ranks = np.full(size // columns, columns, np.int64)
        loops.prune(values[:size], bits, random, order, found, ranks, counts, last, divisor[t])
    return made[:, :size]
