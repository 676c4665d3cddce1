"""The compiled loop of methods/dare.py: drop task vectors at random, rescale the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled
from agentmerge.kernels.cpu.loops.floats import decode, random_lanes
from agentmerge.kernels.cpu.loops.signatures import COUNTS, FLOATS, INTS, SOURCES
from agentmerge.kernels.cpu.loops.stages import task_vector
from agentmerge.kernels.cpu.loops.vectors import LANES, fill_f32, select, store

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array


@compiled(types.void(SOURCES, types.int64, COUNTS, INTS, FLOATS, types.int64, INTS))
def drop(sources: Sources, elements: int, keys: Array, last: Array, density: Array, start: int, out: Array) -> None:
    """Tau / density where an agent's random bits are at most its `last`, else 0; float32 at the addresses `out`."""
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        for t in range(out.size):
            random = random_lanes(keys[t, 0], keys[t, 1], start + i)
            tau = task_vector(sources, base, t, i)
            store(out[t] + 4 * i, select(random > last[t], fill_f32(0.0), tau / density[t]))
