"""What of an agent's folder a packed delta keeps beside the numbers, so that apply gives back the same files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from agentmerge.files.documents import leads_nowhere, read_bytes
from agentmerge.files.header import header_bytes, parsed
from agentmerge.files.os_errors import source_errors
from agentmerge.files.positional import open_to_read
from agentmerge.sidefiles.copied import LARGEST, LOGS, TRAINING, WEIGHTS, listed
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.packed_format import KeptFile, WeightFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.sources.source import Source

PLAIN = ".safetensors"


@dataclass(frozen=True, slots=True)
class Kept:
    """Files of an agent."""

    headers: dict[str, bytes]
    """Of its weight files by name; none where the tensors are kept and the files are not."""
    files: dict[str, bytes]
    """That differ from the base's file of that name, or have none."""
    listed: tuple[KeptFile, ...]
    """Those, and those that are the base's."""
    left: tuple[str, ...]
    """What is not kept."""

    @property
    def weights(self) -> tuple[WeightFile, ...]:
        """As a manifest has them."""
        return tuple(WeightFile(name, len(header)) for name, header in self.headers.items())

    @property
    def data(self) -> bytes:
        """All bytes, in the order of a manifest."""
        return b"".join((*self.headers.values(), *(self.files[file.name] for file in self.listed if file.kept)))


def kept_of(agent: Source, base: Source) -> Kept:
    """What is kept of an agent's folder: everything but other weights, training state, logs and hidden folders.

    Of an agent that is a single file, nothing beside it; of one whose weights are no plain safetensors (a PyTorch
    file, an adapter, a delta) what a merge would take, so that apply makes a checkpoint of it.

    Args:
        agent: open.
        base: open.

    Raises:
        SourceError: a file can't be read.
    """
    headers = _headers(agent)
    left: list[str] = []
    if not headers:
        paths = merged_files(agent, base)
    else:
        paths = dict(_walk(agent.folder.path, left, {*headers})) if agent.folder.whole else {}
    files: dict[str, bytes] = {}
    found = []
    for name, path in sorted(paths.items()):
        data = read_bytes(path)
        kept = not _same(base, name, data)
        if kept:
            files[name] = data
        found.append(KeptFile(name, len(data), sha256(data).hexdigest(), kept))
    return Kept(headers, files, tuple(found), tuple(left))


def merged_files(agent: Source, base: Source) -> dict[str, Path]:
    """What lies beside the weights of a checkpoint that is made of changes: the agent's own, and the base's."""
    own = listed(agent.folder.path).paths if agent.folder.whole else {}
    return own if "config.json" in own or not base.folder.whole else listed(base.folder.path).paths | own


def _headers(agent: Source) -> dict[str, bytes]:
    """The headers of an agent's weight files by name; {} where these can't be made of headers and tensors again."""
    files = agent.identity.files
    if not isinstance(agent.weights, FolderWeights) or not all(f.name.endswith(PLAIN) for f in files):
        return {}
    found, tensors = {}, 0
    for file in files:
        path = agent.identity.folder / file.name
        with source_errors(str(path)):
            fd = open_to_read(path)
            try:
                found[file.name] = header_bytes(fd, path)
            finally:
                os.close(fd)
        tensors += len(parsed(found[file.name], file.size, path).tensors)
    plain = tensors == len(agent.specs) and not any("/" in name for name in found)  # no tensor twice, or ignored
    return found if plain else {}


def _walk(folder: Path, left: list[str], weights: set[str], prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Every file to keep by its relative path; what is not kept goes to `left`."""
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        if name in weights:
            continue
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            if TRAINING.match(path.name) or LOGS.match(path.name):
                left.append(f"{name}/")
            else:
                yield from _walk(path, left, weights, f"{name}/")
        elif _goes(path):
            yield name, path
        else:
            left.append(name)


def _goes(path: Path) -> bool:
    if path.suffix in WEIGHTS or TRAINING.match(path.name) or LOGS.match(path.name):
        return False
    return leads_nowhere(path) or (path.is_file() and path.stat().st_size <= LARGEST)


def _same(base: Source, name: str, data: bytes) -> bool:
    """Whether the base's folder has the same file."""
    path = base.folder.path / name
    return base.folder.whole and path.is_file() and path.stat().st_size == len(data) and read_bytes(path) == data
