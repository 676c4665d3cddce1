"""Pack an agent as what it changed of its base: one file that appears when it is whole.

Tensors are taken in groups. First the blocks of a group are compared, which marks and counts what differs; that decides
the form of every tensor and where its parts lie; then the values are taken out and written. The second reading of a
group comes from the page cache, so that the disk is read once.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from shlex import join
from typing import TYPE_CHECKING, get_args

import numpy as np

from agentmerge.deltas.blocks import blocks_of, nbytes, read_of, threads
from agentmerge.deltas.both import both
from agentmerge.deltas.file import NewFile
from agentmerge.deltas.growing import Growing
from agentmerge.deltas.kept import kept_of
from agentmerge.deltas.look import held, unlike_of
from agentmerge.deltas.prints import Prints
from agentmerge.deltas.record import PackRecord
from agentmerge.errors import RecipeError
from agentmerge.files.paths import expanded
from agentmerge.files.scratch import Scratch
from agentmerge.machine import run_all
from agentmerge.progress import Silent
from agentmerge.sources import bits
from agentmerge.sources.adapter import Materialize
from agentmerge.sources.hub import hub_model
from agentmerge.sources.packed_format import (
    CHUNK,
    Manifest,
    Packed,
    entries_of,
    may_be_sparse,
    smallest,
)
from agentmerge.sources.packed_opening import sample_of
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.tensors import DTYPES, MERGEABLE, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.deltas.kept import Kept
    from agentmerge.progress import Watch
    from agentmerge.sources.source import Source
    from agentmerge.tensors import Array

GROUP = 256 << 20
"""Bytes of the agent that are compared before they are written; a larger tensor is a group of its own."""

_BASE, _AGENT = Scratch(), Scratch()


def pack(
    base: str | Path,
    agent: str | Path,
    out: str | Path,
    *,
    materialize: Materialize = "base_dtype",
    overwrite: bool = False,
    workers: int | None = None,
    watch: Watch | None = None,
) -> PackRecord:
    """Write an agent as a packed delta over its base; see docs/deltas.md.

    Args:
        base: whatever a recipe takes as base.
        agent: whatever it takes as agent.
        out: the file; it appears when it is whole.
        materialize: how an adapter's sum, or what a trainer keeps in a wider dtype, is packed: rounded to the base's
            dtype, or exact; such tensors are kept whole.
        overwrite: replace a file that is there.
        workers: threads; None takes one for each CPU.
        watch: is told of the progress.

    Returns:
        What was written.

    Raises:
        MergeError: whatever the user can mend; `out` is as it was.
    """
    if materialize not in get_args(Materialize):
        expected = " or ".join(map(repr, get_args(Materialize)))
        raise RecipeError(f"materialize: {materialize!r}", expected=expected, todo="Name one.")
    started, path = time.time(), expanded(out)
    with ExitStack() as stack:
        below, above = stack.enter_context(both(base, agent, watch or Silent(), materialize))
        read = read_of(below, above)
        read.refuse_file(path)
        read.refuse(path, path.parent.resolve() / path.name)
        kept = kept_of(above, below)
        file = stack.enter_context(NewFile(path, overwrite=overwrite))
        packing = _Packing(below, above, file, watch or Silent(), threads(workers))
        packing.run()
        for source in (below, above):
            source.identity.restat()
        manifest = packing.finish(kept)
        warnings = [] if materialize == "exact" else list(_other_dtypes(packing, manifest, path))
        return _record(packing, manifest, kept, warnings, time.time() - started)


@dataclass
class _Tensor:
    """One tensor at work."""

    spec: TensorSpec
    base: TensorSpec | None
    marks: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    counts: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Of every CHUNK."""
    packed: Packed | None = None
    offsets: tuple[int, ...] = ()
    """Of its entries, from the start of the file."""


class _Packing:
    """The work of one file."""

    def __init__(self, base: Source, agent: Source, file: NewFile, watch: Watch, workers: int) -> None:
        self.base, self.agent = base, agent
        self._watch, self._workers = watch, workers
        self.prints = Prints()
        common = by_common_name(base.specs)
        self._tensors = [_Tensor(spec, self._under(spec, common)) for spec in agent.specs.values()]
        self.packed: list[Packed] = []
        self._growing = Growing(file, [tensor.spec for tensor in self._tensors])

    def _under(self, spec: TensorSpec, common: Mapping[str, str]) -> TensorSpec | None:
        """The base's tensor of the same name, dtype and shape, or of the same name but for prefixes."""
        names = (spec.name, common.get(common_name(spec.name), ""))
        found = (self.base.specs.get(name) for name in names)
        return next((s for s in found if s and (s.dtype, s.shape) == (spec.dtype, spec.shape)), None)

    def run(self) -> None:
        """Compare and write every tensor."""
        self._watch.begin("pack", 2 * sum(tensor.spec.nbytes for tensor in self._tensors))
        for group in _groups(self._tensors):
            for tensor in group:
                if tensor.base is not None:
                    tensor.marks = np.empty(-(-tensor.spec.elements // bits.WORD), np.uint64)
                    tensor.counts = np.empty(-(-tensor.spec.elements // CHUNK), np.int64)
            self._each(self._compare, [t for t in group if t.base is not None])
            for tensor in group:
                self._place(tensor)
            self._each(self._write, [t for t in group if t.offsets])
            for tensor in group:
                self._done(tensor)

    def _each(self, work: Callable[[_Tensor, Block], None], tensors: Sequence[_Tensor]) -> None:
        """Do the work on every block of some tensors, in threads; the watch is told in this one."""
        tasks = [(tensor, block) for tensor in tensors for block in blocks_of(tensor.spec)]
        run_all(lambda task: work(*task), tasks, self._workers, lambda task: self._watch.advance(nbytes(task[1])))

    def _compare(self, tensor: _Tensor, block: Block) -> None:
        assert tensor.base is not None
        base = self.base.weights.read(Block(tensor.base, block.start, block.stop), _BASE.for_block(block))
        agent = self.agent.weights.read(block, _AGENT.for_block(block))
        self.prints.add("base", block, base)
        self.prints.add("agent", block, agent)
        marks = bits.mark(base, agent)
        tensor.marks[block.start // bits.WORD :][: marks.size] = marks
        counts = bits.count(marks, CHUNK)
        tensor.counts[block.start // CHUNK :][: counts.size] = counts

    def _place(self, tensor: _Tensor) -> None:
        """Decide the form of a tensor, and where its parts lie."""
        spec, base = tensor.spec, tensor.base
        changed = spec.elements if base is None else int(tensor.counts.sum())
        sparse = may_be_sparse(spec.name, self.agent.specs)
        form = "whole" if base is None else smallest(spec, changed, sparse=sparse)
        tensor.offsets = self._growing.place(entries_of(spec, form, changed))
        name, before = (None, None) if base is None else (base.name, self.prints.of("base", spec.name))
        tensor.packed = Packed(spec.name, spec.dtype, spec.shape, form, changed, name, before, "")

    def _write(self, tensor: _Tensor, block: Block) -> None:
        assert tensor.packed is not None
        agent = self.agent.weights.read(block, _AGENT.for_block(block))
        if tensor.base is None:
            self.prints.add("agent", block, agent)
        if tensor.packed.form == "whole":
            self._growing.file.write(agent, tensor.offsets[0] + block.start * DTYPES[block.tensor.dtype].itemsize)
            return
        marks = tensor.marks[block.start // bits.WORD : -(-block.stop // bits.WORD)]
        before = int(tensor.counts[: block.start // CHUNK].sum())
        count = int(tensor.counts[block.start // CHUNK : -(-block.stop // CHUNK)].sum())
        values = bits.take(agent, marks, count)
        self._growing.write(tensor.packed.form, tensor.offsets, block, before, marks, values)

    def _done(self, tensor: _Tensor) -> None:
        assert tensor.packed is not None
        found = replace(tensor.packed, print=self.prints.of("agent", tensor.spec.name))
        self.packed.append(found)
        if found.ranks:
            self._growing.ranked(tensor.counts)
        tensor.marks = tensor.counts = np.empty(0, np.int64)

    def finish(self, kept: Kept) -> Manifest:
        """Write what tells the rest, then the header; the file appears."""
        under = {tensor.base for tensor in self.packed}
        manifest = Manifest(
            base=_name_of(self.base),
            sample=sample_of(self.packed, self.base.weights),
            tensors=tuple(self.packed),
            lacking=tuple(name for name in self.base.specs if name not in under),
            weights=kept.weights,
            files=kept.listed,
        )
        self.nbytes = self._growing.finish(manifest, kept.data)
        return manifest


def _groups(tensors: Sequence[_Tensor]) -> Iterator[list[_Tensor]]:
    group: list[_Tensor] = []
    size = 0
    for tensor in tensors:
        if group and size + tensor.spec.nbytes > GROUP:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.spec.nbytes
    if group:
        yield group


def _name_of(source: Source) -> str:
    """What people call it: its id, or the name of its folder, at most half a line."""
    return (hub_model(source.text) or source.folder.path.resolve().name)[:60]


def _other_dtypes(packing: _Packing, manifest: Manifest, out: Path) -> Iterator[str]:
    """A warning for each two dtypes of a tensor that the agent has in one and the base in the other."""
    agent, base = packing.agent, packing.base
    both = ((agent.specs[name].dtype, base.specs[below].dtype) for name, below in unlike_of(manifest).items())
    for (ours, theirs), count in sorted(Counter(pair for pair in both if pair[0] != pair[1]).items()):
        found = f"{agent.text}: {count} tensors are {ours}, where the base has {theirs}: kept whole, not compared."
        words = ("--base", base.text, "--agent", f"agent={agent.text}", "--patch", str(out))
        command = f"agentmerge merge --method ram --set threshold=0 {join(words)}"
        todo = f" A merge reads its numbers as they are. To pack it rounded to {theirs}: {command}"
        yield found + (todo if {ours, theirs} <= MERGEABLE else "")


def _record(packing: _Packing, manifest: Manifest, kept: Kept, warnings: Sequence[str], seconds: float) -> PackRecord:
    warnings = [*(str(note) for source in (packing.base, packing.agent) for note in source.notes), *warnings]
    found = held(manifest, packing.nbytes)
    if not found["changed"]:
        warnings.append(f"{packing.agent.text}: changed nothing of {packing.base.text}: is it the trained checkpoint?")
    return PackRecord(
        base=packing.base.text,
        agent=packing.agent.text,
        left=list(kept.left),
        warnings=warnings,
        seconds=round(seconds, 3),
        **found,
    )
