"""How a method reaches for a compiled kernel: the few lines that all of them share. Knows no method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels import cpu
from agentmerge.survey.rounding import Rounding, RoundingCounts
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.kernels.call import Rule
    from agentmerge.methods.base import MergeMethod
    from agentmerge.tensors import Array, Cast, Stack

PIECE = 64 * LEAF
"""Elements between two kernels: few enough for the cache, many enough to hide the calls."""


def merge_by(rule: Rule, stack: Stack, cast: Cast, out: Array, extra: tuple[Array, ...] = ()) -> RoundingCounts | None:
    """Merge, cast into `out` and count the rounding in one pass; None when the kernel does not take these dtypes.

    Args:
        rule: which method, and its settings.
        stack: what is merged; the rounding counts are those of the agents, whatever its task vectors.
        cast: to the output dtype.
        out: [n] in the output dtype, written.
        extra: what else the rule reads, [n] each.
    """
    if not cpu.supports(stack.base, stack.agents, cast.dtype, extra):
        return None
    tensor, start = stack.block.tensor.name, stack.block.start
    draw = cast.key(tensor) if cast.rounding == "stochastic" else None
    return RoundingCounts(*cpu.merge(stack.base, stack.agents, rule, out, draw, start, stack.tau, extra))


def in_pieces(
    method: MergeMethod, stack: Stack, out: Array, fused: Callable[[Stack, Array], RoundingCounts | None]
) -> RoundingCounts | None:
    """What `fused` makes of each piece of the stack and of `out`, so that what lies between stays in the cache.

    None where it is None, or where the method must see more than a piece.
    """
    if method.work(stack.block.tensor, len(stack.agents)).reach == "tensor":
        return None
    counts, rounding = RoundingCounts.zero(len(stack.agents)), Rounding()
    with np.errstate(all="ignore"):
        for piece in stack.pieces(PIECE):
            first = piece.block.start - stack.block.start
            found = fused(piece, out[first : first + piece.base.size])
            if found is None:
                return None
            counts = rounding.combine(counts, found)
    return counts
