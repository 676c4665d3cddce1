"""The compiled float64 sums over leaves, as survey/sums.py defines them.

Each writes one row of sums per leaf. Every block starts at a leaf, so element i of a block is added to the running sum
i % RUNNING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.formulas.ram_extended import shared_update
from agentmerge.kernels.cpu.loops.signatures import SCRATCH, SOURCES, SUMS, settings_type
from agentmerge.kernels.cpu.loops.stages import task_vector, task_vectors
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    Lanes,
    fill_f32,
    fill_u8,
    load_f32,
    load_f64,
    magnitude,
    mask,
    ones,
    select,
    store,
    to_double,
    word,
)
from agentmerge.kernels.formulas import Shared
from agentmerge.tensors import LEAF, RUNNING

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Scratch, Sources, Sums
    from agentmerge.tensors import Array


@inlined
def add_products(row: int, i: int, x: Lanes, y: Lanes) -> None:
    """Add float64(x) * float64(y) to a row of running sums at an address."""
    place = row + 8 * (i % RUNNING)
    store(place, load_f64(place) + to_double(x) * to_double(y))


@inlined
def finish_leaf(to: Sums, leaf: int) -> None:
    """Fold the running sums in halves into leaves[leaf], and clear them."""
    running = to.running
    for row in range(len(running)):
        half = RUNNING // 2
        while half:
            for lane in range(half):
                running[row, lane] += running[row, lane + half]
            half //= 2
        to.leaves[leaf, row] = running[row, 0]
        running[row] = 0.0


@inlined
def _leaf_ends(i: int, elements: int) -> Any:
    """Whether the vector at i is the last of its leaf."""
    return (i + LANES) % LEAF == 0 or i + LANES == elements


@compiled(types.void(SOURCES, types.int64, SUMS))
def squares(sources: Sources, elements: int, to: Sums) -> None:
    """methods.fisher.ImportanceNorm: of every extra array; `elements` is a multiple of LANES."""
    rows = to.places
    for i in range(0, elements, LANES):
        for t in range(rows.size):
            value = decode(sources.extra[t], sources.extra_codes[t], i)
            add_products(rows[t], i, value, value)
        if _leaf_ends(i, elements):
            finish_leaf(to, i // LEAF)


@compiled(types.void(SOURCES, SCRATCH, types.int64, SUMS))
def retention(sources: Sources, scratch: Scratch, elements: int, to: Sums) -> None:
    """survey.retention_sums of one extra array: <merged - base, tau[t]> of every agent, then <tau[t], tau[t]>."""
    given, agents, rows = sources.taus.size > 0, scratch.rows.size, to.places
    taus = sources.taus if given else scratch.rows
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        update = decode(sources.extra[0], sources.extra_codes[0], i) - base
        if not given:
            task_vectors(sources, base, i, scratch.rows)
        for t in range(agents):
            tau = load_f32(taus[t] + (4 * i if given else 0))
            add_products(rows[t], i, update, tau)
            add_products(rows[agents + t], i, tau, tau)
        if _leaf_ends(i, elements):
            finish_leaf(to, i // LEAF)


@compiled(types.void(SOURCES, SCRATCH, types.int64, types.float32, SUMS))
def region_retention(sources: Sources, scratch: Scratch, elements: int, threshold: float, to: Sums) -> None:
    """survey.RegionRetention of one extra array: kept unique, kept shared, energy unique, energy shared, [t] each."""
    rows, changed = scratch.rows, scratch.changed
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        update = decode(sources.extra[0], sources.extra_codes[0], i) - base
        some = many = np.uint64(0)
        for t in range(rows.size):
            tau = decode(sources.addresses[t + 1], sources.codes[t + 1], i) - base
            store(rows[t], tau)
            changed[t] = word(magnitude(tau) > threshold)
            many |= some & changed[t]
            some |= changed[t]
        if some:
            _add_regions(update, rows, changed, many, i, to.places)
        if _leaf_ends(i, elements):
            finish_leaf(to, i // LEAF)


@compiled(types.void(SOURCES, SCRATCH, types.int64, SUMS))
def products(sources: Sources, scratch: Scratch, elements: int, to: Sums) -> None:
    """survey.Products: <tau[s], tau[t]> of every s <= t, row by row."""
    given, agents, rows = sources.taus.size > 0, scratch.rows.size, to.places
    taus = sources.taus if given else scratch.rows
    for i in range(0, elements, LANES):
        if not given:
            task_vectors(sources, decode(sources.addresses[0], sources.codes[0], i), i, scratch.rows)
        at, row = 4 * i if given else 0, 0
        for s in range(agents):
            left = load_f32(taus[s] + at)
            for t in range(s, agents):
                add_products(rows[row], i, left, load_f32(taus[t] + at))
                row += 1
        if _leaf_ends(i, elements):
            finish_leaf(to, i // LEAF)


@compiled(types.void(SOURCES, types.int64, types.int64, SUMS))
def powers(sources: Sources, elements: int, power: int, to: Sums) -> None:
    """survey.Powers: the sum of |tau[t]|^power of every agent, 1 or 2."""
    rows, one = to.places, fill_f32(1.0)
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        for t in range(rows.size):
            size = magnitude(task_vector(sources, base, t, i))
            add_products(rows[t], i, size, one if power == 1 else size)
        if _leaf_ends(i, elements):
            finish_leaf(to, i // LEAF)


@inlined
def _add_regions(update: Lanes, rows: Array, changed: Array, many: Any, i: int, places: Array) -> None:
    agents, zero = changed.size, fill_f32(0.0)
    for t in range(agents):
        tau = load_f32(rows[t])
        alone, together = select(mask(changed[t] & ~many), tau, zero), select(mask(changed[t] & many), tau, zero)
        add_products(places[t], i, alone, update)
        add_products(places[agents + t], i, together, update)
        add_products(places[2 * agents + t], i, alone, alone)
        add_products(places[3 * agents + t], i, together, together)


@compiled(types.void(SOURCES, SCRATCH, types.int64, types.float32, settings_type(Shared), SUMS))
def energies(sources: Sources, scratch: Scratch, elements: int, threshold: float, shared: Shared, to: Sums) -> None:
    """methods.energies.Energies: E_unique, E_shared and P_shared of every agent."""
    given, agents, rows, weight = sources.taus.size > 0, scratch.rows.size, to.places, shared.weight
    taus, at, one = sources.taus if given else scratch.rows, 0, fill_f32(1.0)
    for i in range(0, elements, LANES):
        if given:
            at = 4 * i
        else:
            task_vectors(sources, decode(sources.addresses[0], sources.codes[0], i), i, scratch.rows)
        result = shared_update(sources, taus, at, i, threshold, shared)
        count = fill_u8(0)
        for t in range(agents):
            count += ones(magnitude(load_f32(taus[t] + at)) > threshold)
        zero = fill_f32(0.0)
        single, many = select(count == 1, one, zero), select(count > 1, one, zero)
        for t in range(agents):
            tau = load_f32(taus[t] + at)
            update = select(magnitude(tau) > threshold, tau * weight[t], zero)
            alone, together = update * single, update * many  # not selected: inf * 0 is NaN in the definition too
            add_products(rows[t], i, alone, alone)
            add_products(rows[agents + t], i, together, together)
            add_products(rows[2 * agents + t], i, together, result)
        if _leaf_ends(i, elements):
            finish_leaf(to, i // LEAF)
