"""Blocks of many sources, read together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.files import reading
from agentmerge.files.positional import advise_soon
from agentmerge.sources.source import Over

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.files.reading import Extent
    from agentmerge.sources.source import Weights
    from agentmerge.tensors import Array, Block


def read_blocks(
    wanted: Sequence[tuple[Weights, Block]], into: Sequence[Array], ahead: Iterable[tuple[Weights, Block]] = ()
) -> None:
    """Fill an array with every block: what lies verbatim in files by one compiled call, the rest by `Weights.read`.

    Args:
        wanted: blocks of any sources and tensors.
        into: an array for each, [block.elements] in the dtype that its source has the tensor in, contiguous.
        ahead: what will be read next, which the OS may fetch meanwhile.

    Raises:
        SourceError: a file can't be read, or changed.
        ValueError: an array does not fit.
    """
    later = [part for weights, block in ahead for part in weights.extents(block).parts]
    if reading.supported():
        extents = [weights.extents(block) for weights, block in wanted]
    else:
        _advise(later)
        later, extents = [], []
    lying = [i for i, found in enumerate(extents) if found.verbatim]
    filled = reading.fill([into[i] for i in lying], [extents[i].parts for i in lying], later)
    done = set(lying[:filled])
    read = {_key(*wanted[i]): into[i] for i in done}
    for i, (weights, block) in enumerate(wanted):
        if i in done:
            continue
        under = weights.under(block) if isinstance(weights, Over) else None
        known = None if under is None else read.get(_key(*under))
        if known is None:  # put together by a view, or the read that failed, for its error
            weights.read(block, into[i])
        else:
            weights.put_over(block, known, into[i])  # type: ignore[attr-defined]


def _key(weights: Weights, block: Block) -> tuple[int, str, int, int]:
    """Whose numbers a block has, and which."""
    return id(weights), block.tensor.name, block.start, block.stop


def _advise(parts: Iterable[Extent]) -> None:
    for part in parts:
        with part.file.borrow() as fd:
            advise_soon(fd, part.offset, part.nbytes)
