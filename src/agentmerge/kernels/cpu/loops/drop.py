"""The compiled loops that leave out elements of task vectors: of methods/dare.py, trim.py, sce.py and della.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import decode, random_lanes
from agentmerge.kernels.cpu.loops.formulas.sce import variance_of
from agentmerge.kernels.cpu.loops.signatures import COUNTS, FLOATS, INTS, KEYS, SCRATCH, SOURCES
from agentmerge.kernels.cpu.loops.stages import task_vector, task_vectors
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    bits_of,
    fill_f32,
    load_f32,
    lowest,
    magnitude,
    select,
    store,
    word,
)

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Scratch, Sources
    from agentmerge.tensors import Array

ORDER = types.uint64[:, ::1]
KEY_BITS = 11
KEYS_AT_ONCE = 1 << KEY_BITS
SORTED_AT_ONCE = 1 << 14
LAST_KEY, MAGNITUDE, NEGATIVE = np.uint64(KEYS_AT_ONCE - 1), np.uint32(0x7FFFFFFF), np.uint32(0x80000000)


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


@compiled(types.void(SOURCES, types.int64, types.int64, types.int64, KEYS, INTS, INTS, ORDER, INTS))
def draw(
    sources: Sources,
    elements: int,
    start: int,
    at: int,
    bits: Array,
    key: Array,
    out: Array,
    order: Array,
    found: Array,
) -> None:
    """One agent's task vector, random bits where it is not +0, and a list of its elements that are not 0.

    Args:
        sources: base and the agent.
        elements: a multiple of LANES.
        start: flat index of the first element in its tensor.
        at: its place in the arrays.
        bits: the memory of the task vector as uint32.
        key: of the draws.
        out: the addresses of the task vector, float32, and of the random bits, uint32; what no draw is for stays.
        order: written into order[0]: the magnitude's bits in the upper word, the place in the lower one.
        found: how many are listed, and how many vectors hold a -0; added to.
    """
    size = found[0]
    for i in range(0, elements, LANES):
        tau = task_vector(sources, decode(sources.addresses[0], sources.codes[0], i), 0, i)
        store(out[0] + 4 * i, tau)
        if word(bits_of(tau) > 0):
            store(out[1] + 4 * i, random_lanes(key[0], key[1], start + i))
            found[1] += word(bits_of(tau) == NEGATIVE) != 0
            changed = word(bits_of(magnitude(tau)) > 0)
            while changed:
                place = at + i + lowest(changed)
                order[0, size] = np.uint64(bits[place] & MAGNITUDE) << np.uint64(32) | np.uint64(place)
                size, changed = size + 1, changed & (changed - np.uint64(1))
    found[0] = size


@inlined
def _sorted(order: Array, first: int, stop: int, different: int, counts: Array) -> int:
    """Sort order[0, first:stop] by the upper words, of equal ones the first before; in which row of `order` they are.

    By counting, from the lowest bits on, and only of those bits in which any two of them differ.

    Args:
        order: uint64 [2, at least stop]; what else is in there stays.
        first: of them.
        stop: behind the last.
        different: the bits of the upper words that are not the same in all of them.
        counts: int64 [KEYS_AT_ONCE], scratch.
    """
    at, shift = 0, 32
    if different:
        shift += lowest(np.uint64(different))
    while different >> (shift - 32):
        source, target, by = order[at], order[1 - at], np.uint64(shift)
        for key in range(KEYS_AT_ONCE):
            counts[key] = 0
        for j in range(first, stop):
            counts[(source[j] >> by) & LAST_KEY] += 1
        total = first
        for key in range(KEYS_AT_ONCE):
            total, counts[key] = total + counts[key], total
        for j in range(first, stop):
            key = (source[j] >> by) & LAST_KEY
            target[counts[key]] = source[j]
            counts[key] += 1
        at, shift = 1 - at, shift + KEY_BITS
    return at


@inlined
def _ranked(order: Array, first: int, stop: int, columns: Any, ranks: Array, counts: Array) -> int:
    """Sort, and count what of each row is not listed, which has its lowest ranks; see `_sorted`.

    Args:
        order: as for `_sorted`, places in the lower words.
        first: as for `_sorted`.
        stop: as for `_sorted`.
        columns: of a row.
        ranks: `columns` for every row; lowered by what is listed of it.
        counts: as for `_sorted`.
    """
    some, every = np.uint64(0), np.uint64(MAGNITUDE)
    for j in range(first, stop):
        size = order[0, j] >> np.uint64(32)
        some, every = some | size, every & size
        ranks[np.uint32(order[0, j]) // columns] -= 1
    return _sorted(order, first, stop, int(some & ~every), counts)


@compiled(types.void(FLOATS, KEYS, KEYS, ORDER, INTS, INTS, INTS, KEYS, FLOATS))
def prune(
    values: Array,
    bits: Array,
    random: Array,
    order: Array,
    found: Array,
    ranks: Array,
    counts: Array,
    last: Array,
    divisor: Array,
) -> None:
    """Each row in place: tau / divisor where its random bits are at most `last`, both of its rank, else 0.

    What is 0 has the lowest ranks in its order, and needs no sorting; +0 stays what it is, whatever is drawn. The rest
    is sorted, as many rows together as fit the cache, and ranked row by row.

    Args:
        values: float32, whole rows; changed.
        bits: the same memory as uint32.
        random: uint32 of every element that is not +0.
        order: as `draw` leaves it; changed.
        found: the same.
        ranks: `columns` for every row; changed.
        counts: scratch [KEYS_AT_ONCE].
        last: by rank, [columns].
        divisor: by rank, [columns].
    """
    columns, first, row = np.uint32(last.size), 0, 0
    if found[1]:
        _prune_zeros(values, bits, random, last)
    while first < found[0]:
        row, stop = row + max(SORTED_AT_ONCE // last.size, 1), first
        while stop < found[0] and np.uint32(order[0, stop]) < row * last.size:
            stop += 1
        at = _ranked(order, first, stop, columns, ranks, counts)
        for j in range(first, stop):
            place = np.uint32(order[at, j])
            rank = ranks[place // columns]
            ranks[place // columns] = rank + 1
            bits[place] &= np.uint32(0) if random[place] > last[rank] else np.uint32(0xFFFFFFFF)
            values[place] /= divisor[rank]
        first = stop


@inlined
def _prune_zeros(values: Array, bits: Array, random: Array, last: Array) -> None:
    """Every -0 that is not kept becomes +0."""
    for row in range(0, values.size, last.size):
        zeros = 0
        for place in range(row, row + last.size):
            if bits[place] == NEGATIVE and random[place] > last[zeros]:
                values[place] = 0.0
            zeros += bits[place] & MAGNITUDE == 0
