"""What packing and applying share: blocks, threads, and what may not be written over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.files.protected import Protected
from agentmerge.machine import available_cpus
from agentmerge.sources.packed_format import CHUNK
from agentmerge.tensors import DTYPES, Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.sources.source import Source
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


def read_of(base: Source, agent: Source) -> Protected:
    """Every file and folder of a base and an agent, or its delta."""
    read = Protected()
    for source, what in ((base, "the base"), (agent, "the agent")):
        for file in source.identity.files:
            read.add_file(source.identity.folder / file.name, what)
        if source.folder.whole:
            read.add_folder(source.folder.path, what)
    return read
