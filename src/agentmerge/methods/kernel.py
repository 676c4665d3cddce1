"""How a method's kernels are run, and cut into parts that fit the cache; the same for every method."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np

from agentmerge import kernels
from agentmerge.survey.rounding import RoundingCounts
from agentmerge.tensors import LEAF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentmerge.kernels import Backend, Kernel
    from agentmerge.methods.base import MergeMethod
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Cast, Stack

    Kernels = Iterable[Kernel]

CACHED = 64 * LEAF
"""Elements between two kernels: few enough for the cache, many enough to hide the calls."""


def sees_whole(method: MergeMethod, stack: Stack) -> bool:
    """Whether a method must see all of the stack, so that no part of it will do."""
    return method.work(stack.block.tensor, len(stack.agents)).reach != "element"


def merge_by_kernels(
    method: MergeMethod, stack: Stack, survey: Survey, cast: Cast, out: Array
) -> RoundingCounts | None:
    """Merge, cast into `out` and count the rounding; None where the method has no kernel for this stack.

    Args:
        method: which method.
        stack: what is merged.
        survey: what the method asked for.
        cast: to the output dtype.
        out: [n] in the output dtype, written.
    """
    backend = kernels.choose(stack, cast.dtype)
    found = None if backend is None else method.kernel(stack, survey)
    return None if backend is None or found is None else run(backend, found, stack, cast, out)


def run(backend: Backend, found: Kernels, stack: Stack, cast: Cast, out: Array) -> RoundingCounts:
    """Run kernels that cover the stack, each into its part of `out`."""
    counts = RoundingCounts.zero(len(stack.agents))
    with np.errstate(all="ignore"):
        for kernel in found:
            first = kernel.stack.block.start - stack.block.start
            part = out[first : first + kernel.stack.base.size]
            counts += RoundingCounts(*backend.merge(kernel, cast, part))
    return counts


def in_parts(stack: Stack, kernels_of: Callable[[Stack], Kernels | None]) -> Kernels | None:
    """What `kernels_of` gives for each part of the stack in turn, so that what lies between stays in the cache.

    None where it gives none for the first part; one that gives none for a later part is a TypeError when it is run.
    """
    made = map(kernels_of, stack.pieces(CACHED))
    first = next(made, ())
    return None if first is None else chain(first, chain.from_iterable(cast("Iterable[Kernels]", made)))
