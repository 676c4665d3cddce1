"""The compiled float64 sums over leaves, as survey/sums.py defines them. Importing it compiles or loads them.

Each writes one row of sums per leaf. Every block starts at a leaf, so element i of a block is added to lane i % 64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types

from agentmerge.kernels import ram
from agentmerge.kernels.call import LANES as SUMS
from agentmerge.kernels.floats import decode
from agentmerge.kernels.stages import task_vectors
from agentmerge.kernels.vectors import (
    FLOATS,
    INTS,
    LANES,
    SOURCES,
    Lanes,
    compiled,
    fill_f32,
    fill_u8,
    inlined,
    load_f32,
    load_f64,
    magnitude,
    ones,
    select,
    store,
    to_double,
)
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from agentmerge.kernels.call import Sources
    from agentmerge.tensors import Array

_DOUBLES = types.float64[:, ::1]


@inlined
def _add(row: int, i: int, x: Lanes, y: Lanes) -> None:
    """Add float64(x) * float64(y) to a row of running sums at an address."""
    place = row + 8 * (i % SUMS)
    store(place, load_f64(place) + to_double(x) * to_double(y))


@inlined
def _finish(running: Array, sums: Array, leaf: int) -> None:
    """Fold the lanes in halves into sums[leaf], and clear them."""
    for row in range(len(running)):
        half = SUMS // 2
        while half:
            for lane in range(half):
                running[row, lane] += running[row, lane + half]
            half //= 2
        sums[leaf, row] = running[row, 0]
        running[row] = 0.0


@compiled(types.void(SOURCES, types.int64, _DOUBLES, INTS, _DOUBLES))
def squares(sources: Sources, elements: int, running: Array, rows: Array, sums: Array) -> None:
    """methods.fisher.ImportanceNorm: of every extra array.

    Args:
        sources: what is read.
        elements: a multiple of LANES.
        running: zeros [rows, 64].
        rows: the address of each row.
        sums: float64 [leaves, rows], written.
    """
    for i in range(0, elements, LANES):
        for t in range(rows.size):
            value = decode(sources.extra[t], sources.extra_codes[t], i)
            _add(rows[t], i, value, value)
        if (i + LANES) % LEAF == 0 or i + LANES == elements:
            _finish(running, sums, i // LEAF)


@compiled(types.void(SOURCES, INTS, types.int64, _DOUBLES, INTS, _DOUBLES))
def retention(sources: Sources, scratch: Array, elements: int, running: Array, rows: Array, sums: Array) -> None:
    """survey.retention_sums of one extra array: <merged - base, tau[t]> of every agent, then <tau[t], tau[t]>."""
    given, agents = sources.taus.size > 0, scratch.size
    taus = sources.taus if given else scratch
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        update = decode(sources.extra[0], sources.extra_codes[0], i) - base
        if not given:
            task_vectors(sources, base, i, scratch)
        for t in range(agents):
            tau = load_f32(taus[t] + (4 * i if given else 0))
            _add(rows[t], i, update, tau)
            _add(rows[agents + t], i, tau, tau)
        if (i + LANES) % LEAF == 0 or i + LANES == elements:
            _finish(running, sums, i // LEAF)


@compiled(
    types.void(
        SOURCES, INTS, types.int64, types.float32, FLOATS, types.int64, types.float32, FLOATS, _DOUBLES, INTS, _DOUBLES
    )
)
def energies(
    sources: Sources,
    scratch: Array,
    elements: int,
    threshold: float,
    weight: Array,
    shared: int,
    power: float,
    table: Array,
    running: Array,
    rows: Array,
    sums: Array,
) -> None:
    """methods.energies.Energies: E_unique, E_shared and P_shared of every agent."""
    given, agents = sources.taus.size > 0, scratch.size
    taus, at, one = sources.taus if given else scratch, 0, fill_f32(1.0)
    for i in range(0, elements, LANES):
        if given:
            at = 4 * i
        else:
            task_vectors(sources, decode(sources.addresses[0], sources.codes[0], i), i, scratch)
        result = ram.shared_update(
            taus, at, sources.extra, sources.extra_codes, i, threshold, weight, shared, power, table
        )
        count = fill_u8(0)
        for t in range(agents):
            count += ones(magnitude(load_f32(taus[t] + at)) > threshold)
        zero = fill_f32(0.0)
        single, many = select(count == 1, one, zero), select(count > 1, one, zero)
        for t in range(agents):
            tau = load_f32(taus[t] + at)
            update = select(magnitude(tau) > threshold, tau * weight[t], zero)
            alone, together = update * single, update * many  # not selected: inf * 0 is NaN in the definition too
            _add(rows[t], i, alone, alone)
            _add(rows[agents + t], i, together, together)
            _add(rows[2 * agents + t], i, together, result)
        if (i + LANES) % LEAF == 0 or i + LANES == elements:
            _finish(running, sums, i // LEAF)
