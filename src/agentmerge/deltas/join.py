"""Packed deltas of one base made one, without the base: what each changed, where no two changed the same.

That is RAM at lambda 1 where every change is unique: an element that one agent changed is the agent's own value, and
one that none changed is the base's. A change is any other bits, so threshold 0. An element that two changed would be
the mean of their changes, for which the base's number is needed: it is refused, and told how many there are.

The fingerprint of the result needs no base either: it is a sum over words, to which changes of different elements add
up, so print = base + sum over agents of (print[t] - base), mod 2^64.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from agentmerge.deltas.alone import WITH_BASE, Agent, check_alike, opened_alone
from agentmerge.deltas.blocks import blocks_of, nbytes, threads
from agentmerge.deltas.file import NewFile
from agentmerge.deltas.growing import Growing
from agentmerge.deltas.kept import Kept
from agentmerge.deltas.record import JoinRecord
from agentmerge.errors import AlignmentError, DataError, RecipeError, shortened
from agentmerge.files.paths import expanded
from agentmerge.files.protected import Protected
from agentmerge.machine import run_all
from agentmerge.progress import Silent
from agentmerge.sources import bits
from agentmerge.sources.packed_format import CHUNK, Packed, entries_of, smallest
from agentmerge.sources.packed_opening import headers_of
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.progress import Watch
    from agentmerge.tensors import Array, Block, TensorSpec


def join(
    deltas: Mapping[str, str | Path],
    out: str | Path,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    watch: Watch | None = None,
) -> JoinRecord:
    """Write packed deltas of one base as one; see docs/deltas.md.

    Args:
        deltas: by agent, files that `pack` wrote.
        out: the file; it appears when it is whole.
        overwrite: replace a file that is there.
        workers: threads; None takes one for each CPU.
        watch: is told of the progress.

    Raises:
        MergeError: agents changed the same elements, lie over different bases, or another thing that the user can
            mend; `out` is as it was.
    """
    started, path = time.time(), expanded(out)
    if len(deltas) < 2:
        raise RecipeError(f"join: found {len(deltas)} delta", expected="two or more")
    with ExitStack() as stack:
        agents = {name: opened_alone(name, expanded(delta), stack) for name, delta in sorted(deltas.items())}
        read = Protected()
        for name, agent in agents.items():
            read.add_file(expanded(deltas[name]), f"the delta of agent '{name}'")
            check_alike(next(iter(agents.values())), agent)
        read.refuse_file(path)
        file = stack.enter_context(NewFile(path, overwrite=overwrite))
        joining = _Joining(agents, file, watch or Silent(), threads(workers))
        joining.run()
        for agent in agents.values():
            agent.stored.identity.restat()
        size = joining.finish()
        return JoinRecord(
            base=joining.first.manifest.base,
            agents={name: str(delta) for name, delta in deltas.items()},
            nbytes=size,
            elements=sum(tensor.spec.elements for tensor in joining.packed),
            changed={name: sum(t.changed for t in agent.manifest.tensors) for name, agent in agents.items()},
            seconds=round(time.time() - started, 3),
        )


@dataclass
class _Tensor:
    """One tensor at work: those who changed it, and what they did together."""

    spec: TensorSpec
    changers: tuple[Agent, ...]
    marks: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    counts: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Of every CHUNK."""
    offsets: tuple[int, ...] = ()
    packed: Packed | None = None


class _Joining:
    """The work of one file."""

    def __init__(self, agents: Mapping[str, Agent], file: NewFile, watch: Watch, workers: int) -> None:
        self._agents, self._watch, self._workers = agents, watch, workers
        self.first = next(iter(agents.values()))
        self._specs = [tensor.spec for tensor in self.first.manifest.tensors]
        self._growing = Growing(file, self._specs)
        self.packed: list[Packed] = []
        self._shared: dict[str, int] = {}
        self._lock = Lock()

    def run(self) -> None:
        """Every tensor.

        Raises:
            DataError: elements are changed by several agents.
        """
        self._watch.begin("join", 2 * sum(spec.nbytes for spec in self._specs))
        for spec in self._specs:
            self._do(spec)
        if self._shared:
            self._refuse()

    def finish(self) -> int:
        """Let the file appear: its bytes."""
        headers, kept = self._kept()
        manifest = replace(self.first.manifest, tensors=tuple(self.packed), weights=headers.weights, files=kept.listed)
        return self._growing.finish(manifest, headers.data + kept.data)

    def _do(self, spec: TensorSpec) -> None:
        of = [(agent, agent.weights.packed[spec.name]) for agent in self._agents.values()]
        tensor = _Tensor(spec, tuple(agent for agent, packed in of if packed.form != "same"))
        forms = {packed.form for _, packed in of}
        if "whole" in forms and len(tensor.changers) > 1:
            self._shared[spec.name] = spec.elements  # whose elements are changed it does not say
            return
        if tensor.changers and "whole" not in forms:
            tensor.marks = np.zeros(-(-spec.elements // bits.WORD), np.uint64)
            tensor.counts = np.zeros(-(-spec.elements // CHUNK), np.int64)
            self._each(self._mark, tensor)
        if spec.name in self._shared:
            return
        self._place(tensor, of)
        if tensor.offsets:
            self._each(self._copy if "whole" in forms else self._write, tensor)
        if tensor.packed is not None and tensor.packed.ranks:
            self._growing.ranked(tensor.counts)

    def _each(self, work: Callable[[_Tensor, Block], None], tensor: _Tensor) -> None:
        blocks = blocks_of(tensor.spec)
        run_all(lambda b: work(tensor, b), blocks, self._workers, lambda b: self._watch.advance(nbytes(b)))

    def _mark(self, tensor: _Tensor, block: Block) -> None:
        """Who changed what of a block."""
        part = slice(block.start // bits.WORD, -(-block.stop // bits.WORD))
        marks, shared = tensor.marks[part], 0
        for agent in tensor.changers:
            found = agent.weights.changes(block)
            if found is not None:
                shared += int(bits.count(marks & found.marks, CHUNK).sum())
                marks |= found.marks
        counts = bits.count(marks, CHUNK)
        tensor.counts[block.start // CHUNK :][: counts.size] = counts
        if shared:
            with self._lock:
                self._shared[tensor.spec.name] = self._shared.get(tensor.spec.name, 0) + shared

    def _place(self, tensor: _Tensor, of: Sequence[tuple[Agent, Packed]]) -> None:
        """The form of a tensor: never whole unless an agent has it so, as that needs the base."""
        spec, (_, first) = tensor.spec, of[0]
        whole = any(packed.form == "whole" for _, packed in of)
        changed = sum(packed.changed for _, packed in of)
        form = "whole" if whole else smallest(spec, changed)
        form = "bitmap" if form == "whole" and not whole else form
        base = int(first.base_print or "0", 16)
        print_ = (base + sum(int(packed.print, 16) - base for _, packed in of)) % 2**64
        tensor.offsets = self._growing.place(entries_of(spec, form, changed))
        tensor.packed = replace(first, form=form, changed=changed, print=f"{print_:016x}")
        self.packed.append(tensor.packed)

    def _write(self, tensor: _Tensor, block: Block) -> None:
        assert tensor.packed is not None
        marks = tensor.marks[block.start // bits.WORD : -(-block.stop // bits.WORD)]
        before = int(tensor.counts[: block.start // CHUNK].sum())
        count = int(tensor.counts[block.start // CHUNK : -(-block.stop // CHUNK)].sum())
        values = np.zeros(block.elements, DTYPES[tensor.spec.dtype])
        for agent in tensor.changers:
            found = agent.weights.changes(block)
            if found is not None:
                found.over(block.start, values, values)
        taken = bits.take(values, marks, count)
        self._growing.write(tensor.packed.form, tensor.offsets, block, before, marks, taken)

    def _copy(self, tensor: _Tensor, block: Block) -> None:
        """A block of a tensor that the only agent who changed it keeps whole."""
        (agent,) = tensor.changers
        start = tensor.offsets[0] + block.start * DTYPES[tensor.spec.dtype].itemsize
        self._growing.file.write(agent.stored.read(block), start)

    def _kept(self) -> tuple[Kept, Kept]:
        """Headers of the weight files where all agents have the same; files that are the base's, or alike in all."""
        headers = [
            dict(zip((w.name for w in a.manifest.weights), headers_of(a.manifest, a.stored), strict=True))
            for a in self._agents.values()
        ]
        same = headers[0] if all(other == headers[0] for other in headers) else {}
        listed = [{file.name: file for file in agent.manifest.files} for agent in self._agents.values()]
        of_base = {n: f for files in listed for n, f in files.items() if not f.kept}
        alike = {n: f for n, f in listed[0].items() if n not in of_base and all(o.get(n) == f for o in listed)}
        if not {"config.json"} & (of_base.keys() | alike.keys()) and any("config.json" in files for files in listed):
            found = "config.json: every agent has one of its own, and none is the base's"
            raise AlignmentError(found, expected="one config", todo=WITH_BASE, where=self.first.where)
        data = {name: self.first.file(name) for name in alike}
        files = tuple(file for _, file in sorted({**of_base, **alike}.items()))
        return Kept(same, {}, (), ()), Kept({}, data, files, ())

    def _refuse(self) -> NoReturn:
        total, elements = sum(self._shared.values()), sum(spec.elements for spec in self._specs)
        worst = sorted(self._shared, key=lambda name: -self._shared[name])
        raise DataError(
            f"{total:,} of {elements:,} elements ({total / elements:.2%}) are changed by several of "
            f"{', '.join(self._agents)}, most in {shortened(f'{name} ({self._shared[name]:,})' for name in worst)}",
            expected="one agent for each, as the mean of several changes needs the base's number",
            todo=WITH_BASE,
            where=self.first.where,
        )
