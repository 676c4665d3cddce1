"""The compiled loop of alike/storage.py: the base's number where an agent's is that, rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled
from agentmerge.kernels.cpu.loops.floats import decode, round_to
from agentmerge.kernels.cpu.loops.signatures import SOURCES
from agentmerge.kernels.cpu.loops.vectors import LANES, fill_u32, select, store

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources


@compiled(types.void(SOURCES, types.int64, types.int64, types.int64))
def restore(sources: Sources, elements: int, code: int, out: int) -> None:
    """Float32 at the address `out`, [elements]; `code` is the dtype that the agent stores its numbers in."""
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        read = decode(sources.addresses[1], sources.codes[1], i)
        same = read == round_to(base, code, False, fill_u32(0))
        store(out + 4 * i, select(same, base, read))
