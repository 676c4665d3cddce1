"""Write a synthetic base and its agents as sharded checkpoints, streaming. Knows not what numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.files.layout import plan_layout
from agentmerge.machine import available_cpus
from agentmerge.synth.agents import check_at_least_one, densities_by_name
from agentmerge.synth.fill import SynthSet
from agentmerge.synth.folder import open_folder
from agentmerge.synth.shapes import find_shape
from agentmerge.synth.staging import staged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.files.layout import Layout


@dataclass(frozen=True, slots=True)
class SynthReport:
    """What was written and where."""

    shape: str
    seed: int
    base: Path
    agents: Mapping[str, Path]
    elements: int
    """Of each checkpoint."""
    densities: Mapping[str, float]
    """As asked for."""
    changed: Mapping[str, int]
    """Elements of each agent whose bits differ from the base's."""
    shards: int
    """Of each checkpoint."""
    nbytes: int
    """Of all shards of all checkpoints."""


def synthesise(
    shape: str,
    out: Path,
    *,
    agents: int = 3,
    densities: Sequence[float] | None = None,
    seed: int = 0,
    shard_size: int = 5_000_000_000,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SynthReport:
    """Write out/base and one folder per agent; `out` appears when all of them are complete.

    The same seed gives the same tensors whatever the workers, shard size and further agents.

    Args:
        shape: one of SHAPES.
        out: missing or empty folder.
        agents: how many, at least 1.
        densities: share of the elements that each agent changes, [0, 1], in units of 1/65536; see DENSITIES.
        seed: of all numbers.
        shard_size: bytes.
        workers: threads; None takes one for each CPU.
        progress: called with the bytes just written, by one thread at a time.

    Raises:
        RecipeError: an argument is out of its range.
        OutputError: `out` is taken, the disk lacks the space or can't be written.
    """
    model, wanted = find_shape(shape), densities_by_name(agents, densities)
    threads = available_cpus() if workers is None else workers
    check_at_least_one("workers", threads)
    check_at_least_one("shard_size", shard_size)
    layout = plan_layout(model.tensors(), shard_size)
    with staged(out, _nbytes(layout, agents)) as staging:
        for name, density in {"base": None, **wanted}.items():
            open_folder(staging / name, layout, model, seed, density)
        changed = SynthSet(staging, layout, wanted, seed).fill(threads, progress)
    return SynthReport(
        shape=shape,
        seed=seed,
        base=out / "base",
        agents={name: out / name for name in wanted},
        elements=model.parameters,
        densities=wanted,
        changed=changed,
        shards=len(layout.shards),
        nbytes=_nbytes(layout, agents),
    )


def _nbytes(layout: Layout, agents: int) -> int:
    return sum(shard.size for shard in layout.shards) * (1 + agents)
