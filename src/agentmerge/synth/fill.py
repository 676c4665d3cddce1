"""Fill the shards of a base and its agents with their numbers. Knows no configs and no staging."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from agentmerge.files.positional import OpenFiles, write_from
from agentmerge.synth.numbers import PIECE, agent_piece, base_piece
from agentmerge.synth.workers import run_all
from agentmerge.tensors import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from agentmerge.files.layout import Layout
    from agentmerge.tensors import Array, TensorSpec

MOST_OPEN = 64
"""Files kept open at a time."""


@dataclass(frozen=True, slots=True)
class SynthSet:
    """A base and its agents whose folders and empty shards already lie in `folder`."""

    folder: Path
    layout: Layout
    """Of the base and of every agent."""
    densities: Mapping[str, float]
    """By agent name."""
    seed: int

    def fill(self, workers: int, progress: Callable[[int], None] | None = None) -> dict[str, int]:
        """Write the data of every tensor; the count of changed elements of each agent.

        Args:
            workers: threads.
            progress: called with the bytes just written, by one thread at a time.

        Raises:
            OSError: a write failed.
        """
        changed = dict.fromkeys(self.densities, 0)
        lock = Lock()

        def write(block: Block) -> None:
            counts, nbytes = self._write(block, files)
            with lock:
                changed.update({name: changed[name] + count for name, count in counts.items()})
                if progress is not None:
                    progress(nbytes)

        with closing(OpenFiles(_open_to_write, MOST_OPEN)) as files:
            run_all(write, pieces_of(place.spec for place in self.layout.places.values()), workers)
        return changed

    def _write(self, block: Block, files: OpenFiles) -> tuple[dict[str, int], int]:
        """Write one piece of the base and every agent: each agent's changed elements, all bytes written."""
        changed, base = {}, base_piece(block, self.seed)
        self._put("base", block, base, files)
        for name, density in self.densities.items():
            agent, changed[name] = agent_piece(base, block, self.seed, name, density)
            self._put(name, block, agent, files)
        return changed, base.nbytes * (1 + len(self.densities))

    def _put(self, name: str, block: Block, piece: Array, files: OpenFiles) -> None:
        place = self.layout.places[block.tensor.name]
        shard = self.folder / name / self.layout.shards[place.shard].name
        with files.borrow(str(shard)) as fd:
            write_from(fd, piece, place.offset + block.start * piece.itemsize)


def pieces_of(specs: Iterable[TensorSpec]) -> Iterator[Block]:
    """Every piece of every tensor."""
    for spec in specs:
        for start in range(0, spec.elements, PIECE):
            yield Block(spec, start, min(start + PIECE, spec.elements))


def _open_to_write(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
