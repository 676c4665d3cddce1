"""Unfinished sums that survive a kill, and the finished importance."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import OutputError, SourceError, Where
from agentmerge.files.os_errors import output_errors
from agentmerge.files.save import PART, save_file
from agentmerge.sources.opening import opened
from agentmerge.tensors import Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.files.layout import Layout
    from agentmerge.files.writer import Writer

SUMS = "sums.safetensors"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    examples: int = 0
    log_likelihood: float = 0.0
    """Summed over every response token of these examples."""


class SumStore:
    """The sums of a run in its staging folder: one file, replaced by a rename, that says how far it is."""

    def __init__(self, folder: Path, specs: Sequence[TensorSpec], work: str) -> None:
        """Look into the staging folder.

        Args:
            folder: of the run.
            specs: of the sums, float32.
            work: tells the sums of one work from another's.
        """
        self._path, self._specs, self._work = folder / SUMS, specs, work
        self._part = folder / (SUMS + PART)
        self._part.unlink(missing_ok=True)

    def save(self, sums: Iterable[tuple[str, Array]], done: Progress) -> None:
        """Put these sums in the place of the ones before, and return when they are on the disk.

        Raises:
            OutputError: the disk refuses or is too full; what was saved before stays.
        """
        self._check_space()
        texts = {"work": self._work, "examples": str(done.examples), "log_likelihood": done.log_likelihood.hex()}
        with output_errors(self._part):
            save_file(self._path, self._specs, sums, texts)

    def load(self) -> tuple[Progress, Iterator[tuple[str, Array]]] | None:
        """What an earlier run of this work saved: how far it was, and its sums, flat; None where nothing is whole."""
        if not self._path.exists():
            return None
        try:
            with opened(None, str(self._path)) as found:
                if found.metadata.get("work") != self._work or list(found.specs.values()) != list(self._specs):
                    return None
                done = Progress(int(found.metadata["examples"]), float.fromhex(found.metadata["log_likelihood"]))
        except (SourceError, LookupError, ValueError):  # damaged since
            return None
        return done, self._arrays()

    def drop(self) -> None:
        """Give the disk space back."""
        self._path.unlink(missing_ok=True)

    def _check_space(self) -> None:
        needed, free = sum(spec.nbytes for spec in self._specs), shutil.disk_usage(self._path.parent).free
        if free < needed:
            folder = self._path.parent
            raise OutputError(
                f"{folder}: {needed:,} bytes are needed to save the unfinished sums, {free:,} are free",
                todo="Free some space and run the same command again, or save less often with a larger --every.",
                where=Where(path=str(folder)),
            )

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        with opened(None, str(self._path)) as found:
            for spec in self._specs:
                yield spec.name, found.weights.read(Block(spec, 0, spec.elements))


def write_means(writer: Writer, layout: Layout, sums: Mapping[str, Array], examples: int) -> list[str]:
    """Write sum / examples for every tensor of the layout, zeros where there is no sum.

    Args:
        writer: of the output.
        layout: its tensors, float32.
        sums: float32 by the names of the layout.
        examples: n, at least 1.

    Returns:
        The tensors that are zero everywhere.
    """
    zero = []
    for name, place in layout.places.items():
        mean = np.zeros(place.spec.elements, np.float32)
        if name in sums:
            np.divide(sums[name].reshape(-1), np.float32(examples), out=mean)
        if not mean.any():
            zero.append(name)
        writer.write(place, 0, mean)
    return zero
