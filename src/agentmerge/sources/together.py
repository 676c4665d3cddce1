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
    for i, (weights, block) in enumerate(wanted):
        if i in done:
            continue
        known = _known(weights, block, [(wanted[j], into[j]) for j in done])
        if known is None:  # put together by a view, or the read that failed, for its error
            weights.read(block, into[i])
        else:
            weights.put_over(block, known, into[i])  # type: ignore[attr-defined]


def _known(weights: Weights, block: Block, read: Sequence[tuple[tuple[Weights, Block], Array]]) -> Array | None:
    """What was read that a block's numbers are but for changes."""
    under = weights.under(block) if isinstance(weights, Over) else None
    if under is None:
        return None
    whose, which = under
    place = which.tensor.name, which.start, which.stop
    same = (array for (other, its), array in read if other is whose and (its.tensor.name, its.start, its.stop) == place)
    return next(same, None)


def _advise(parts: Iterable[Extent]) -> None:
    for part in parts:
        with part.file.borrow() as fd:
            advise_soon(fd, part.offset, part.nbytes)
