"""One block of many sources, read together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.files import reading
from agentmerge.files.positional import advise_soon

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentmerge.files.reading import Extent
    from agentmerge.sources.source import Weights
    from agentmerge.tensors import Array, Block


def read_block(
    sources: Sequence[Weights],
    block: Block,
    into: Sequence[Array],
    ahead: Iterable[tuple[Weights, Block]] = (),
) -> None:
    """Fill an array from every source: what lies verbatim in files by one compiled call, the rest by `read`.

    Args:
        sources: all of them have the block's tensor.
        block: what to read.
        into: an array for each source, [block.elements] in the source's dtype of the tensor, contiguous.
        ahead: what will be read next, which the OS may fetch meanwhile.

    Raises:
        SourceError: a file can't be read, or changed.
        ValueError: an array does not fit.
    """
    later = [part for weights, soon in ahead for part in weights.extents(soon).parts]
    if not reading.supported():
        _advise(later)
        later, extents = [], []
    else:
        extents = [weights.extents(block) for weights in sources]
    lying = [i for i, found in enumerate(extents) if found.verbatim]
    filled = reading.fill([into[i] for i in lying], [extents[i].parts for i in lying], later)
    done = set(lying[:filled])
    for i, weights in enumerate(sources):
        if i not in done:  # put together by a view, or the read that failed, for its error
            weights.read(block, into[i])


def _advise(parts: Iterable[Extent]) -> None:
    for part in parts:
        with part.file.borrow() as fd:
            advise_soon(fd, part.offset, part.nbytes)
