"""The compiled loops that leave out elements of task vectors: of methods/dare.py, trim.py, sce.py and della.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import decode, random_lanes
from agentmerge.kernels.cpu.loops.formulas.sce import variance_of
from agentmerge.kernels.cpu.loops.signatures import COUNTS, FLOATS, INTS, KEYS, SCRATCH, SOURCES
from agentmerge.kernels.cpu.loops.stages import task_vector, task_vectors
from agentmerge.kernels.cpu.loops.vectors import LANES, bits_of, fill_f32, load_f32, magnitude, select, store

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Scratch, Sources
    from agentmerge.tensors import Array

KEY_BITS, ROUNDS = 11, 3
KEYS_AT_ONCE = 1 << KEY_BITS
LAST_KEY, MAGNITUDE = np.uint32(KEYS_AT_ONCE - 1), np.uint32(0x7FFFFFFF)


@compiled(types.void(SOURCES, types.int64, COUNTS, INTS, FLOATS, types.int64, INTS))
def drop(sources: Sources, elements: int, keys: Array, last: Array, density: Array, start: int, out: Array) -> None:
    """Tau / density where an agent's random bits are at most its `last`, else 0; float32 at the addresses `out`."""
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        for t in range(out.size):
            random = random_lanes(keys[t, 0], keys[t, 1], start + i)
            tau = task_vector(sources, base, t, i)
            store(out[t] + 4 * i, select(random > last[t], fill_f32(0.0), tau / density[t]))


@compiled(types.void(SOURCES, types.int64, FLOATS, FLOATS, FLOATS, INTS))
def trim(sources: Sources, elements: int, low: Array, high: Array, factor: Array, out: Array) -> None:
    """Tau * factor where its magnitude is from an agent's `low` to its `high`, else 0; float32 at the addresses."""
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        for t in range(out.size):
            tau = task_vector(sources, base, t, i)
            size = magnitude(tau)
            inside = (size >= low[t]) & (fill_f32(high[t]) >= size)
            store(out[t] + 4 * i, select(inside, tau * factor[t], fill_f32(0.0)))


@compiled(types.void(SOURCES, SCRATCH, types.int64, types.int64))
def variances(sources: Sources, scratch: Scratch, elements: int, out: int) -> None:
    """The variance of every element over the agents; float32 at the address `out`."""
    given = sources.taus.size > 0
    rows = sources.taus if given else scratch.rows
    for i in range(0, elements, LANES):
        if not given:
            task_vectors(sources, decode(sources.addresses[0], sources.codes[0], i), i, scratch.rows)
        store(out + 4 * i, variance_of(rows, 4 * i if given else 0))


@compiled(types.void(SOURCES, SCRATCH, types.int64, types.float32, INTS))
def select_varying(sources: Sources, scratch: Scratch, elements: int, limit: float, out: Array) -> None:
    """Tau where the variance over the agents is at least the limit, else 0; float32 at the addresses `out`."""
    given = sources.taus.size > 0
    rows = sources.taus if given else scratch.rows
    for i in range(0, elements, LANES):
        if not given:
            task_vectors(sources, decode(sources.addresses[0], sources.codes[0], i), i, scratch.rows)
        at = 4 * i if given else 0
        stays = variance_of(rows, at) >= limit
        for t in range(out.size):
            store(out[t] + 4 * i, select(stays, load_f32(rows[t] + at), fill_f32(0.0)))


@inlined
def _sort_row(bits: Array, order: Array, counts: Array) -> None:
    """The places of a row from the smallest magnitude on, of equal ones the first before, into order[0].

    Three rounds of counting, 11 bits of the magnitude's 31 in each. `order` is uint32 [2, columns], `counts` holds 0.
    """
    columns = order.shape[1]
    for j in range(columns):
        order[1, j] = j
    for turn in range(ROUNDS):
        shift, to = np.uint32(KEY_BITS * turn), turn % 2
        for k in range(KEYS_AT_ONCE):
            counts[k] = 0
        for j in range(columns):
            counts[((bits[j] & MAGNITUDE) >> shift) & LAST_KEY] += 1
        total = 0
        for k in range(KEYS_AT_ONCE):
            total, counts[k] = total + counts[k], total
        for j in range(columns):
            place = order[1 - to, j]
            key = ((bits[place] & MAGNITUDE) >> shift) & LAST_KEY
            order[to, counts[key]] = place
            counts[key] += 1


@compiled(types.void(KEYS, types.int64, types.uint32[:, ::1], INTS, KEYS, FLOATS, KEYS, FLOATS))
def rank_rows(
    bits: Array, elements: int, order: Array, counts: Array, last: Array, divisor: Array, lasts: Array, divisors: Array
) -> None:
    """For every element what `last` and `divisor`, [columns] each, hold for its rank in its row.

    Args:
        bits: of float32 task vectors, rows of order.shape[1] elements.
        elements: of them.
        order: scratch.
        counts: scratch.
        last: by rank.
        divisor: by rank.
        lasts: written, by element.
        divisors: written, by element.
    """
    columns = order.shape[1]
    for row in range(0, elements, columns):
        _sort_row(bits[row : row + columns], order, counts)
        for rank in range(columns):
            place = row + order[0, rank]
            lasts[place], divisors[place] = last[rank], divisor[rank]


@compiled(types.void(INTS, types.int64, types.int64, types.int64, types.int64))
def prune(addresses: Array, elements: int, key0: int, key1: int, start: int) -> None:
    """Tau / divisor where the random bits are at most an element's `last`, else 0.

    Args:
        addresses: of tau, last, divisor and the result.
        elements: a multiple of LANES.
        key0: of the draws.
        key1: of the draws.
        start: flat index of the first element in its tensor.
    """
    for i in range(0, elements, LANES):
        random, last = random_lanes(key0, key1, start + i), bits_of(load_f32(addresses[1] + 4 * i))
        kept = load_f32(addresses[0] + 4 * i) / load_f32(addresses[2] + 4 * i)
        store(addresses[3] + 4 * i, select(random > last, fill_f32(0.0), kept))
