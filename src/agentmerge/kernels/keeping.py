"""The compiled sums of what a merge keeps of each agent by region, as survey/regions.py defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import types

from agentmerge.kernels.floats import decode
from agentmerge.kernels.summing import _add, _finish
from agentmerge.kernels.vectors import (
    INTS,
    LANES,
    SOURCES,
    compiled,
    fill_f32,
    inlined,
    load_f32,
    magnitude,
    mask,
    select,
    store,
    word,
)
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from typing import Any

    from agentmerge.kernels.call import Sources
    from agentmerge.kernels.vectors import Lanes
    from agentmerge.tensors import Array


@inlined
def _sum(update: Lanes, rows: Array, changed: Array, many: Any, i: int, places: Array) -> None:
    agents, zero = changed.size, fill_f32(0.0)
    for t in range(agents):
        tau = load_f32(rows[t])
        alone, together = select(mask(changed[t] & ~many), tau, zero), select(mask(changed[t] & many), tau, zero)
        _add(places[t], i, alone, update)
        _add(places[agents + t], i, together, update)
        _add(places[2 * agents + t], i, alone, alone)
        _add(places[3 * agents + t], i, together, together)


@compiled(
    types.void(
        SOURCES, INTS, types.int64, types.float32, types.float64[:, ::1], INTS, types.float64[:, ::1]
    )
)  # fmt: skip
def retention(
    sources: Sources, rows: Array, elements: int, threshold: float, running: Array, places: Array, sums: Array
) -> None:
    """Write [leaves, 4 * agents]; `rows` are the addresses of a vector of scratch per agent."""
    changed = np.zeros(rows.size, np.uint64)
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
            _sum(update, rows, changed, many, i, places)
        if (i + LANES) % LEAF == 0 or i + LANES == elements:
            _finish(running, sums, i // LEAF)
