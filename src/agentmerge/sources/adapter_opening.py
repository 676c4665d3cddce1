"""A LoRA adapter opened as an agent: its config, its matrices, and what is to be said of them."""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import Note, SourceError, Where, shortened
from agentmerge.files.documents import read_bytes
from agentmerge.sources.adapter import Adapter, Materialize
from agentmerge.sources.adapter_config import CONFIG, adapter_config
from agentmerge.sources.called import is_another
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.index import Choice
from agentmerge.sources.lowrank import LowRankWeights
from agentmerge.sources.placed import refuse_fp8
from agentmerge.sources.source import Folder, Identity, Source, SourceFile
from agentmerge.sources.strided import in_rows
from agentmerge.sources.trainers import UNLORA, adapters_of
from agentmerge.tensors import LEAF, Block, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentmerge.errors import Role
    from agentmerge.sources.adapter_config import AdapterConfig
    from agentmerge.sources.source import Weights
    from agentmerge.tensors import Array, TensorSpec

FILES = ("adapter_model.safetensors", "adapter_model.bin")
"""The weights that are read; other adapters' are refused."""
SAMPLES = 16
"""Blocks of a leaf that the densities are estimated from."""
THRESHOLD = 1e-5
WAYS: tuple[Materialize, ...] = ("base_dtype", "exact")


@contextmanager
def open_adapter(
    role: Role | None,
    text: str,
    folder: Folder,
    names: Sequence[str],
    base: Source | None,
    materialize: Materialize,
    *,
    estimate: bool = True,
) -> Iterator[Source]:
    """An adapter's agent.

    Args:
        role: who it is.
        text: what the user wrote.
        folder: where its files lie.
        names: of its weights: all that the folder holds, or the one file that the user named.
        base: what it is added to.
        materialize: see Adapter.
        estimate: the densities from samples, for which data are read.

    Raises:
        SourceError: it is none that can be added to the base.
    """
    file, path = _file(folder, adapters_of(names), base), folder.path / CONFIG
    raw, state = read_bytes(path), path.stat()
    config = adapter_config(raw, path)
    assert base is not None
    refuse_fp8(base.specs, folder.path)
    stored = FolderWeights(text, folder.path, Choice((file,)))
    tensors = in_rows(stored, text)
    try:
        made = {way: Adapter(folder.path / file, tensors, config, base.weights, way) for way in WAYS}
        adapter = made[materialize]
        says = SourceFile(CONFIG, state.st_size, state.st_mtime_ns, sha256(raw + materialize.encode()).hexdigest())
        source = Source(
            role=role,
            text=text,
            weights=LowRankWeights(text, adapter.parts),
            folder=folder,
            identity=Identity(folder.path, (*stored.identity.files, says)),
            metadata=stored.metadata,
            notes=(*_other_base(config, base, Where(role, text, path=str(path))),),
        )
        densities = _densities(base, made) if estimate else ""
        note = f"{text}: {adapter}, read as {materialize}{densities}{adapter.besides}"
        yield source.noted(Note(note, where=Where(role, text), severity="note"))
    finally:
        stored.close()


def _file(folder: Folder, files: Sequence[str], base: Source | None) -> str:
    """The one file of its weights."""
    found, where = f"{folder.path}: found a LoRA adapter ({shortened(files)})", Where(path=str(folder.path))
    if base is None:
        expected = "the weights of a whole model (a base is none, and no agent can be read without its base)"
        raise SourceError(found, expected=expected, todo=UNLORA, where=where)
    files = [FILES[0]] if FILES[0] in files else files
    if len(files) != 1 or files[0] not in FILES:
        raise SourceError(f"{found}, which is not supported", expected=" or ".join(FILES), todo=UNLORA, where=where)
    if not (folder.path / CONFIG).exists():
        raise SourceError(f"{found} without {CONFIG}", expected="its rank and scale there", todo=UNLORA, where=where)
    return files[0]


def _other_base(config: AdapterConfig, base: Source, where: Where) -> Iterator[Note]:
    """A warning where it was trained on a model of another name: only the shapes are sure."""
    if config.base and is_another(config.base, base):
        yield Note(
            f"{where.source}: {CONFIG} says that the adapter was trained on {config.base}, and the base is {base.text}",
            "If that is another model, the sum is none that was trained: give its own base.",
            where,
        )


def _densities(base: Source, made: Mapping[Materialize, Adapter]) -> str:
    """How many elements of the changed matrices differ from the base by more than 1e-5, either way: an estimate."""
    parts = made["exact"].parts
    names = [n for n in made["exact"].changed if n in base.specs and base.specs[n].shape == parts[n].spec.shape]
    chosen = names[:: max(1, len(names) // SAMPLES)][:SAMPLES]
    blocks = [_sample(parts[name].spec, i) for i, name in enumerate(chosen)]
    if not sum(block.elements for block in blocks):
        return ""
    shares = []
    for way in WAYS:
        weights = LowRankWeights("", made[way].parts)
        moved = sum(_moved(weights, base.weights, block) for block in blocks)
        shares.append(f"{_percent(moved / sum(block.elements for block in blocks))} with {way}")
    return f"; of their elements differ from the base by more than {THRESHOLD:.0e}, estimated: {', '.join(shares)}"


def _percent(share: float) -> str:
    """For example "0.31 %", "44 %", "99.7 %", "100 %"."""
    percent = 100 * share
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.3g} %"


def _sample(spec: TensorSpec, i: int) -> Block:
    """A leaf of a tensor, from another place for every i."""
    first = i * 7919 % max(1, spec.elements // LEAF) * LEAF
    return Block(spec, first, min(first + LEAF, spec.elements))


def _moved(weights: Weights, base: Weights, block: Block) -> int:
    """How many elements of a block differ by more than the usual threshold."""
    numbers: list[Array] = [as_float32(source.read(block)) for source in (weights, base)]
    with np.errstate(invalid="ignore", over="ignore"):
        return int((np.abs(numbers[0] - numbers[1]) > np.float32(THRESHOLD)).sum())
