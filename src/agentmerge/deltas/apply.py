"""Make the agent of a delta and its base again: its own files where the delta keeps them, else its tensors."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__
from agentmerge.deltas.blocks import blocks_of, nbytes, read_of, threads
from agentmerge.deltas.both import both
from agentmerge.deltas.kept import merged_files
from agentmerge.deltas.prints import Prints
from agentmerge.deltas.record import ApplyRecord
from agentmerge.errors import SourceError, Where
from agentmerge.files.destination import Destination
from agentmerge.files.documents import abbreviated, read_bytes
from agentmerge.files.header import parsed
from agentmerge.files.layout import INDEX, Layout, Place, ShardLayout, index_json, plan_layout
from agentmerge.files.paths import expanded
from agentmerge.files.scratch import Scratch
from agentmerge.files.writer import Writer
from agentmerge.machine import run_all
from agentmerge.progress import Silent
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.packed import PackedWeights
from agentmerge.sources.packed_format import WHOLE_TODO
from agentmerge.sources.packed_opening import headers_of
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from agentmerge.progress import Watch
    from agentmerge.sources.source import Source
    from agentmerge.tensors import Block, TensorSpec

SHARD = 5_000_000_000
"""Bytes of a weight file of our own making."""
COMMIT_SECONDS = 2.0
OTHER = "Give the base that it was packed with; if it is that, the file is damaged: pack it again, or fetch it again."

_AGENT = Scratch()


def apply(
    base: str | Path,
    delta: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    watch: Watch | None = None,
) -> ApplyRecord:
    """Write the agent that a delta makes of its base; a killed call resumes when it is made again.

    Of a packed delta of a plain checkpoint, every file is the agent's, byte for byte; of anything else that is an agent
    over a base (an adapter, another sparse delta), its tensors in files of our own making.

    Args:
        base: what it was packed with.
        delta: the file.
        out: a new or empty folder; it appears when everything is written.
        overwrite: replace a folder that is there, once the new one is whole.
        workers: threads; None takes one for each CPU.
        watch: is told of the progress.

    Returns:
        What was written.

    Raises:
        MergeError: whatever the user can mend; `out` is as it was.
    """
    started, folder = time.time(), expanded(out)
    with ExitStack() as stack:
        below, agent = stack.enter_context(both(base, delta, watch or Silent()))
        if isinstance(agent.weights, FolderWeights):
            todo = "Give what `agentmerge pack` wrote with --delta, and what it was packed with, with --base."
            raise SourceError(f"{agent.text}: a whole checkpoint", expected="a delta", todo=todo, where=agent.where)
        place = Destination(folder)
        read_of(below, agent).refuse(folder, place.out, place.folder, place.aside.folder)
        layout, files = _planned(agent, below)
        identity = {"apply": agent.identity.as_json(), "base": below.identity.as_json(), "agentmerge": __version__}
        writer = stack.enter_context(Writer(folder, layout, identity, overwrite=overwrite))
        try:
            _Applying(agent, layout, writer, watch or Silent()).run(threads(workers))
            for source in (below, agent):
                source.identity.restat()
            writer.finish(files)
        except SourceError as error:
            writer.refuse(str(error))
            raise
        names = [*(shard.name for shard in layout.shards), *sorted(files)]
        return ApplyRecord(
            base=below.text,
            delta=agent.text,
            nbytes=layout.file_bytes,
            files=names,
            same_files=_keeps_files(agent),
            warnings=[str(note) for source in (below, agent) for note in source.notes],
            seconds=round(time.time() - started, 3),
        )


class _Applying:
    """The work of one folder."""

    def __init__(self, agent: Source, layout: Layout, writer: Writer, watch: Watch) -> None:
        self._agent, self._layout, self._writer, self._watch = agent, layout, writer, watch
        self._prints = Prints()
        done = {entry.get("tensor") for entry in writer.entries}
        self._todo = [spec for spec in agent.specs.values() if spec.name not in done]
        self._left = {spec.name: sum(1 for _ in blocks_of(spec)) for spec in self._todo}
        self._finished: list[dict[str, Any]] = []
        self._committed = time.monotonic()

    def run(self, workers: int) -> None:
        """Write what an earlier run did not finish.

        Raises:
            SourceError: a tensor does not become what it was.
        """
        self._watch.begin("apply", sum(spec.nbytes for spec in self._todo))
        blocks = (block for spec in self._todo for block in blocks_of(spec))
        run_all(self._write, blocks, workers, self._keep)
        self._writer.commit(self._finished)

    def _write(self, block: Block) -> None:
        place = self._layout.places[block.tensor.name]
        offset = place.offset + block.start * DTYPES[place.spec.dtype].itemsize
        array = self._agent.weights.read(block, _AGENT.for_block(block, offset))
        self._prints.add("agent", block, array)
        self._writer.write(place, block.start, array)

    def _keep(self, block: Block) -> None:
        """A block is written: tell it and, with the last one of its tensor, keep that now and then."""
        spec = block.tensor
        self._watch.advance(nbytes(block))
        self._left[spec.name] -= 1
        if self._left[spec.name]:
            return
        self._check(spec)
        self._finished.append({"tensor": spec.name})
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self._writer.commit(self._finished)
            self._finished, self._committed = [], time.monotonic()

    def _check(self, spec: TensorSpec) -> None:
        weights = self._agent.weights
        if not isinstance(weights, PackedWeights):
            return
        if self._prints.of("agent", spec.name) != weights.packed[spec.name].print:
            where = Where(tensor=spec.name, path=self._agent.text)
            found = f"{self._agent.text}: over this base, tensor {abbreviated(spec.name)} is not what was packed"
            raise SourceError(found, expected="the same fingerprint", todo=OTHER, where=where)


def _keeps_files(agent: Source) -> bool:
    return isinstance(agent.weights, PackedWeights) and bool(agent.weights.manifest.weights)


def _planned(agent: Source, base: Source) -> tuple[Layout, dict[str, bytes]]:
    """Where every tensor goes, and the files beside them.

    Raises:
        SourceError: a file that is the base's has changed since the agent was packed.
    """
    weights = agent.weights
    if not isinstance(weights, PackedWeights):
        return _own_layout(agent, {name: read_bytes(path) for name, path in merged_files(agent, base).items()})
    paths = {file.name: agent.folder.path / file.name for file in weights.manifest.files}
    for name, path in paths.items():
        if not path.is_file():
            found = f"{agent.text}: lies over another base than {base.text}, whose {name} has other bytes"
            raise SourceError(found, expected="the files of its base", todo=OTHER, where=Where(path=agent.text))
    files = {name: read_bytes(path) for name, path in paths.items()}
    return (_kept_layout(agent, weights), files) if weights.manifest.weights else _own_layout(agent, files)


def _own_layout(agent: Source, files: dict[str, bytes]) -> tuple[Layout, dict[str, bytes]]:
    layout = plan_layout(list(agent.specs.values()), SHARD)
    index = index_json(layout)
    return layout, files if index is None else files | {INDEX: index}


def _kept_layout(agent: Source, weights: PackedWeights) -> Layout:
    """The agent's own files.

    Raises:
        SourceError: their headers do not fit its tensors.
    """
    shards: list[ShardLayout] = []
    places: dict[str, Place] = {}
    path = Path(agent.text)
    headers = zip(weights.manifest.weights, headers_of(weights.manifest, weights.file), strict=True)
    for i, (file, raw) in enumerate(headers):
        header = parsed(raw, None, path)
        specs = tuple(entry.spec for entry in header.tensors.values())
        shards.append(ShardLayout(file.name, raw, len(raw) + sum(spec.nbytes for spec in specs), specs))
        places |= {e.spec.name: Place(i, header.data_start + e.begin, e.spec) for e in header.tensors.values()}
    if {name: place.spec for name, place in places.items()} != dict(agent.specs):
        found = f"{path}: the headers that it keeps do not fit its tensors"
        raise SourceError(found, todo=WHOLE_TODO, where=Where(path=str(path)))
    return Layout(tuple(shards), places, sum(spec.nbytes for spec in agent.specs.values()))
