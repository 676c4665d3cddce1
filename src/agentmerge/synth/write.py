"""Write a synthetic base and its agents as sharded checkpoints that appear together when all are whole."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from agentmerge.errors import OutputError, Where
from agentmerge.files.journal import JOURNAL, Journal
from agentmerge.files.layout import plan_layout
from agentmerge.files.open_files import OpenFiles
from agentmerge.files.positional import write_from
from agentmerge.files.save import reserved, save_index
from agentmerge.files.staging import Staging
from agentmerge.machine import available_cpus, run_all
from agentmerge.synth.numbers import RUN, agent_numbers, base_numbers, check_at_least_one, densities_by_name
from agentmerge.synth.shapes import find_shape
from agentmerge.tensors import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.files.layout import Layout
    from agentmerge.synth.configs import Json
    from agentmerge.synth.shapes import Shape
    from agentmerge.tensors import Array, TensorSpec

MOST_OPEN = 64
"""Files kept open at a time."""
IDENTITY = {"synth": 1}
"""What an unfinished set says of itself; it does not resume, but it may be thrown away."""

_README = """# Synthetic {role} in the shape of {shape}

Random numbers, not a model: `agentmerge synth` wrote this folder so that merging can be tried at full size
without a download. The configs are those of {shape}; the weights mean nothing, and there is no tokenizer.

- {what}
- Seed: {seed}. The same seed gives the same numbers again.
"""
_BASE = "Weights: bfloat16, normal, standard deviation 0.02; norm weights around 1."
_AGENT = """Weights: those of `../base`, a share of {density} of them moved by 1 to 3 bfloat16 steps.
- About 6 % of these moves, on weights near zero, are under the default threshold of 1e-5: `agentmerge probe`
  shows a density that much lower."""


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
    model, shares = find_shape(shape), densities_by_name(agents, densities)
    threads = available_cpus() if workers is None else workers
    check_at_least_one("workers", threads)
    check_at_least_one("shard_size", shard_size)
    layout = plan_layout(model.tensors(), shard_size)
    nbytes = layout.file_bytes * (1 + agents)
    with staged(out, ("base", *shares), nbytes) as folder:
        for name, density in {"base": None, **shares}.items():
            begin_checkpoint(folder / name, layout, model, seed, density)
        changed = SynthSet(folder, layout, shares, seed).fill(threads, progress)
    return SynthReport(
        shape=shape,
        seed=seed,
        base=out / "base",
        agents={name: out / name for name in shares},
        elements=model.parameters,
        densities=shares,
        changed=changed,
        shards=len(layout.shards),
        nbytes=nbytes,
    )


@contextmanager
def staged(out: Path, names: Sequence[str], needed: int) -> Iterator[Path]:
    """Give a staging folder whose entries become those of `out` at the end, or which vanishes where that fails.

    Args:
        out: where the entries shall appear; missing or empty.
        names: the entries.
        needed: bytes that will be written.

    Raises:
        OutputError: `out` is taken or in use, the disk lacks the space, or the system refuses to write.
    """
    out = out.resolve()
    try:
        _check_free_name(out)
        staging = Staging(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        _check_free_space(staging.folder.parent, needed)
        staging.create()
        staging.lock()
        with closing(staging), closing(Journal(staging.folder / JOURNAL, out)) as journal:
            journal.begin(IDENTITY)
            try:
                staging.clear({JOURNAL})
                yield staging.folder
                if not staging.mounted:
                    _check_free_name(out)  # what appeared meanwhile is somebody's
                staging.publish(names)
            except BaseException:
                staging.discard()
                raise
    except OutputError:
        raise
    except OSError as error:
        todo = "Choose another folder with --out."
        raise OutputError(f"{out}: can't be written: {error}", todo=todo, where=Where(path=str(out))) from error


def _check_free_name(out: Path) -> None:
    where = Where(path=str(out))
    if out.exists() and not out.is_dir():
        todo = "Choose another name with --out."
        raise OutputError(f"{out}: is a file", expected="a new or empty folder", todo=todo, where=where)
    if out.exists() and any(out.iterdir()):
        todo = "Remove it, or choose another with --out."
        raise OutputError(f"{out}: the folder is not empty", todo=todo, where=where)


def _check_free_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        todo = "Free some space, choose another disk with --out, a smaller shape or fewer agents."
        missing = f"{folder}: {needed:,} bytes are needed, {free:,} are free"
        raise OutputError(missing, todo=todo, where=Where(path=str(folder)))


def begin_checkpoint(folder: Path, layout: Layout, shape: Shape, seed: int, density: float | None) -> None:
    """Make the folder with everything but the tensors' data: headers, index, configs, README.

    Args:
        folder: must not exist.
        layout: of the shards.
        shape: whose configs to write.
        seed: of the numbers, for the README.
        density: share of the elements that the agent changes; None for the base.

    Raises:
        OSError: the disk can't hold it.
    """
    folder.mkdir()
    for shard in layout.shards:
        with reserved(folder / shard.name, shard):
            pass
    save_index(folder, layout)
    (folder / "config.json").write_text(_json(shape.config))
    (folder / "generation_config.json").write_text(_json(shape.generation))
    role, what = ("base", _BASE) if density is None else ("agent", _AGENT.format(density=density))
    (folder / "README.md").write_text(_README.format(role=role, shape=shape.name, what=what, seed=seed))


def _json(content: Json) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


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
            run_all(write, blocks_of(place.spec for place in self.layout.places.values()), workers)
        return changed

    def _write(self, block: Block, files: OpenFiles) -> tuple[dict[str, int], int]:
        """Write one block of the base and every agent: each agent's changed elements, all bytes written."""
        changed, base = {}, base_numbers(block, self.seed)
        self._put("base", block, base, files)
        for name, density in self.densities.items():
            agent, changed[name] = agent_numbers(base, block, self.seed, name, density)
            self._put(name, block, agent, files)
        return changed, base.nbytes * (1 + len(self.densities))

    def _put(self, name: str, block: Block, numbers: Array, files: OpenFiles) -> None:
        place = self.layout.places[block.tensor.name]
        shard = self.folder / name / self.layout.shards[place.shard].name
        with files.borrow(str(shard)) as fd:
            write_from(fd, numbers, place.offset + block.start * numbers.itemsize)


def blocks_of(specs: Iterable[TensorSpec]) -> Iterator[Block]:
    """Every run of every tensor."""
    for spec in specs:
        for start in range(0, spec.elements, RUN):
            yield Block(spec, start, min(start + RUN, spec.elements))


def _open_to_write(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
