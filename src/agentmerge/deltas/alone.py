"""Packed deltas that are open without the base which they lie over, and whether that is the same of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from agentmerge.errors import AlignmentError, SourceError, Where, shortened
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.index import Choice
from agentmerge.sources.packed import PackedWeights
from agentmerge.sources.packed_format import FILES
from agentmerge.sources.packed_opening import is_packed, manifest_of
from agentmerge.sources.source import NOWHERE
from agentmerge.tensors import Block

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from agentmerge.sources.packed_format import Manifest
    from agentmerge.sources.source import Extents, Stored
    from agentmerge.tensors import Array, TensorSpec

WITH_BASE = "Merge them with their base: agentmerge merge --base BASE --agent NAME=DELTA ... --patch OUT."


@dataclass(frozen=True, slots=True)
class Agent:
    """One delta, open without its base."""

    name: str
    where: Where
    stored: FolderWeights
    weights: PackedWeights

    @property
    def manifest(self) -> Manifest:
        """What it says of itself."""
        return self.weights.manifest

    def file(self, name: str) -> bytes:
        """A file beside the agent's weights that is kept; KeyError where none of that name is."""
        at = sum(weights.header for weights in self.manifest.weights)
        for file in self.manifest.files:
            if file.name == name and file.kept:
                return self.stored.read(Block(self.stored.specs[FILES], at, at + file.size)).tobytes()
            at += file.size if file.kept else 0
        raise KeyError(name)


class _NoBase:
    """The base that is not there. A Weights without tensors."""

    specs: Mapping[str, TensorSpec] = {}

    def read(self, block: Block, out: Array | None = None) -> NoReturn:
        """There is nothing to read."""
        raise SourceError(f"{block.tensor.name}: the base is not there", todo=WITH_BASE)

    def extents(self, block: Block) -> Extents:
        """Nowhere."""
        return NOWHERE

    def stored(self, name: str) -> tuple[Stored, ...]:
        """Unknown."""
        return ()


def opened_alone(name: str, path: Path, stack: ExitStack) -> Agent:
    """A delta, open until the stack is closed; SourceError where it is none, or damaged."""
    where = Where(path=str(path))
    if not path.is_file() or not is_packed(path):
        found = f"agent '{name}' ({path}) is no packed delta"
        raise SourceError(found, expected="a file that `agentmerge pack` wrote", where=where)
    stored = FolderWeights(str(path), path.parent, Choice((path.name,)))
    stack.callback(stored.close)
    manifest = manifest_of(stored, path)
    return Agent(name, where, stored, PackedWeights(str(path), stored, manifest, _NoBase(), str(path)))


def check_alike(first: Agent, agent: Agent) -> None:
    """Raise AlignmentError where two deltas lie over different bases, or are not of the same tensors."""
    ours, theirs = first.weights.packed, agent.weights.packed
    alone = [t.name for t in agent.manifest.tensors if t.base is None]
    other = alone or sorted(ours.keys() ^ theirs.keys()) or [
        name for name, mine in ours.items()
        if (mine.spec, mine.base, mine.base_print) != (theirs[name].spec, theirs[name].base, theirs[name].base_print)
    ]  # fmt: skip
    if other:
        what = "the base lacks" if alone else f"lie over another base than those of agent '{first.name}', or are alone"
        raise AlignmentError(
            f"agent '{agent.name}' has tensors that {what}: {shortened(other)}",
            expected="deltas of one base with the same tensors",
            todo=WITH_BASE,
            where=agent.where,
        )
