"""Write a checkpoint of arrays that are at hand, or one file of them in place of another."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.files.layout import INDEX, index_json, plan_layout
from agentmerge.files.positional import preallocate, sync_data, sync_folder, write_from
from agentmerge.tensors import DTYPES, Array, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agentmerge.files.layout import Layout, ShardLayout

PART = ".part"
"""Behind the name of a file that is not whole yet."""


def save(
    folder: Path,
    tensors: Mapping[str, Array],
    *,
    shard_size: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
) -> Layout:
    """Write one safetensors file, or shards and their index; files of the same names are replaced.

    Args:
        folder: made, with its parents, where it is not there.
        tensors: by name, in the order in which they shall be stored.
        shard_size: bytes of data in a shard.
        metadata: goes into every file's header, beside {"format": "pt"}.

    Returns:
        What lies where.

    Raises:
        OSError: the disk can't hold it.
    """
    layout = plan_layout([spec_of(name, array) for name, array in tensors.items()], shard_size, metadata)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in layout.shards:
        with reserved(folder / shard.name, shard) as fd:
            for spec in shard.specs:
                write_from(fd, np.ascontiguousarray(tensors[spec.name]), layout.places[spec.name].offset)
    save_index(folder, layout)
    return layout


def save_index(folder: Path, layout: Layout) -> None:
    """Write the index of the shards, where there is more than one."""
    index = index_json(layout)
    if index is not None:
        (folder / INDEX).write_bytes(index)


def save_file(
    path: Path, specs: Sequence[TensorSpec], arrays: Iterable[tuple[str, Array]], metadata: Mapping[str, str]
) -> None:
    """Write one safetensors file beside the old one, and return when it is on the disk in its place.

    Args:
        path: of the file; it is written as `path` + PART.
        specs: of the tensors, in the order of their data.
        arrays: each of them once, in any order.
        metadata: goes into the header, beside {"format": "pt"}.

    Raises:
        OSError: the disk can't hold it; the old file stays.
    """
    part = path.with_name(path.name + PART)
    layout = plan_layout(specs, max(sum(spec.nbytes for spec in specs), 1), metadata)
    try:
        with reserved(part, layout.shards[0]) as fd:
            for name, array in arrays:
                write_from(fd, array, layout.places[name].offset)
            sync_data(fd)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
    sync_folder(path.parent)


@contextmanager
def reserved(path: Path, shard: ShardLayout) -> Iterator[int]:
    """The descriptor of a new file, in place of any old one, that has its header and its full size.

    Raises:
        OSError: the disk can't hold it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        preallocate(fd, shard.size)
        write_from(fd, shard.header, 0)
        yield fd
    finally:
        os.close(fd)


def spec_of(name: str, array: Array) -> TensorSpec:
    """The spec of a numpy array."""
    spelling = {dtype: word for word, dtype in DTYPES.items()}
    return TensorSpec(name, spelling[array.dtype], array.shape)
