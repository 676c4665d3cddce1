"""The blocks that packing and applying work on, and how many threads they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.machine import available_cpus
from agentmerge.sources.packed_format import CHUNK
from agentmerge.tensors import DTYPES, Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.tensors import TensorSpec

SIZE = 8 << 20
"""Bytes of a block."""
MOST_WORKERS = 16


def blocks_of(spec: TensorSpec) -> Iterator[Block]:
    """Every block of a tensor: whole chunks, but for the last one."""
    step = max(SIZE // DTYPES[spec.dtype].itemsize // CHUNK, 1) * CHUNK
    for start in range(0, spec.elements, step):
        yield Block(spec, start, min(start + step, spec.elements))


def nbytes(block: Block) -> int:
    """Bytes of a block."""
    return block.elements * DTYPES[block.tensor.dtype].itemsize


def threads(wanted: int | None) -> int:
    """How many there are: as wanted, else one for each CPU."""
    return wanted or min(available_cpus(), MOST_WORKERS)
