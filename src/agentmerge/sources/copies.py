"""A tensor in two shards is one tensor as long as both copies hold the same bytes; else nobody knows which is meant.

The index names one of them, and loaders that go through the files take whichever they read last. A few pieces of each
are compared when a checkpoint is opened, and every block that is read is compared as it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.files.positional import flat_bytes
from agentmerge.tensors import Block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.tensors import Array, TensorSpec

SAMPLED, PIECES, PIECE = 256, 16, 4096
"""Tensors in two shards that are looked at when a checkpoint is opened, pieces of each, and elements of a piece."""


def pieces(spec: TensorSpec) -> Iterator[Block]:
    """Up to PIECES blocks of a tensor, the first and the last among them; all of it where it is small."""
    last = max(spec.elements - PIECE, 0)
    for start in dict.fromkeys(last * i // (PIECES - 1) for i in range(PIECES)):
        yield Block(spec, start, min(start + PIECE, spec.elements))


def first_difference(block: Block, one: Array, other: Array) -> int | None:
    """The first element of a block whose bytes differ, counted from the tensor's begin; None where all are the same.

    Args:
        block: that was read.
        one: of one copy, [block.elements].
        other: of the other, of the same dtype.
    """
    if flat_bytes(one) == flat_bytes(other):
        return None
    rows = (array.view(np.uint8).reshape(-1, array.itemsize) for array in (one, other))
    return block.start + int(np.argmax(np.any(np.not_equal(*rows), axis=1)))


def differ(name: str, path: Path, other: Path, how: str) -> SourceError:
    """The error for copies that are not the same.

    Args:
        name: of the tensor.
        path: of the shard that the index names.
        other: of the other one.
        how: they differ.
    """
    return SourceError(
        f"{path}: tensor {abbreviated(name)} is also in {other.name}, {how}; the index takes it from {path.name}, and "
        "other loaders may take the other one",
        expected="the same numbers in both",
        todo="Find out which of the two the training wrote, and save the checkpoint again with that one alone, for "
        "example by save_pretrained of the model as it should be.",
        where=Where(tensor=name, path=str(other)),
    )
