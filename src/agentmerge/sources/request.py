"""What shall be opened, and which kind of source it looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agentmerge.files.layout import INDEX
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.sources.delta_opening import delta_files
from agentmerge.sources.hub import cached_snapshot, local_path
from agentmerge.sources.index import TORCH_INDEX, TORCH_SINGLE
from agentmerge.sources.packed_opening import is_packed
from agentmerge.sources.trainers import Unfinished, adapters_of, parts_at, unfinished

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.errors import Role
    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.hub import Snapshot
    from agentmerge.sources.source import Source

SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")
NOT_WEIGHTS = ("training_args.*", "optimizer*", "scheduler*", "rng_state*")  # left by a trainer


@dataclass(frozen=True, slots=True)
class Request:
    """What shall be opened, and what there is of it."""

    role: Role | None
    text: str
    """What the user wrote."""
    path: Path
    """What that is, read as a path."""
    exists: bool
    names: tuple[str, ...] | None
    """What a folder holds, sorted, hidden entries aside; None for anything else."""
    base: Source | None
    """What an agent's changes are to be added to, for formats that hold nothing else."""
    materialize: Materialize = "base_dtype"
    """How that sum, or what a trainer keeps in a wider dtype, is read."""
    snapshot: Snapshot | None = None
    """Of the hub."""

    @property
    def weights(self) -> list[str]:
        """The safetensors files of a folder."""
        return [name for name in self.names or () if name.endswith(".safetensors")]

    def holding(self, suffixes: tuple[str, ...]) -> list[str]:
        """The files of a folder that end so and may be weights."""
        names = [name for name in self.names or () if name.endswith(suffixes)]
        return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in NOT_WEIGHTS)]


def requested(
    role: Role | None,
    text: str,
    base: Source | None = None,
    materialize: Materialize = "base_dtype",
    snapshot: Snapshot | None = None,
) -> Request:
    """What there is of a source; see `sources.opening.opened` for the arguments."""
    path = local_path(text) if snapshot is None else snapshot.folder
    exists = bool(text) and path.exists()
    folder = exists and path.is_dir()
    names = tuple(sorted(e.name for e in path.iterdir() if not e.name.startswith("."))) if folder else None
    return Request(role, text, path, exists, names, base, materialize, snapshot or cached_snapshot(path))


def is_adapter(request: Request) -> bool:
    """An adapter's file, or a folder that holds one and no other weights."""
    if request.names is None:
        return bool(adapters_of([request.path.name]))
    adapters = adapters_of(request.names)
    return bool(adapters) and not {*request.weights, *request.holding(SUFFIXES), INDEX}.intersection(request.names) - {
        *adapters
    }


def deltas_of(request: Request) -> list[str]:
    """The files that are deltas."""
    if request.names is None:
        return delta_files(request.path.parent, [request.path.name])
    return delta_files(request.path, single(request))


def packed_of(request: Request) -> list[Path]:
    """The files that are packed deltas."""
    if request.names is None:
        return [request.path] if request.exists and is_packed(request.path) else []
    return [path for path in map(request.path.joinpath, single(request)) if is_packed(path)]


def single(request: Request) -> list[str]:
    """The safetensors files of a folder that are no shards of its index."""
    sharded = INDEX in (request.names or ())
    return [name for name in request.weights if not (sharded and SHARD.search(name))]


def trained_of(request: Request) -> Path | None:
    """Where the parts lie that a trainer left, and no whole weights beside them."""
    whole = {INDEX, TORCH_INDEX, TORCH_SINGLE, *request.weights}
    return None if request.names is None or whole & {*request.names} else parts_at(request.path, request.names)


def parts_of(request: Request) -> Unfinished | None:
    """What a trainer left that is no checkpoint yet; None where there are whole weights, or nothing of the kind."""
    if request.names is None:
        return unfinished(request.path.parent, [request.path.name])
    if request.weights or INDEX in request.names:
        return None
    return unfinished(request.path, [path.name for path in request.path.iterdir()])
