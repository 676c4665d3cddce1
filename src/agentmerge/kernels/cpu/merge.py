"""Merge, cast and observe in one pass, by the formula that a kernel names."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels.arguments import CODES, Destination, Scratch, address, check, spans
from agentmerge.kernels.formulas import typed

if TYPE_CHECKING:
    from agentmerge.kernels import Kernel
    from agentmerge.tensors import Array, Cast


def merge(kernel: Kernel, cast: Cast, out: Array) -> tuple[Array, Array, Array, Array, int, int]:
    """See Backend.merge."""
    stack, loop, settings = kernel.stack, loop_of(kernel.loop), typed(kernel.settings)
    check(stack.base, out)
    draw = cast.key(stack.block.tensor.name) if cast.rounding == "stochastic" else None
    inputs = (stack.base, *stack.agents, *kernel.extra)
    exact = out.dtype == np.float32 or {array.dtype for array in inputs} == {out.dtype}
    agents = len(stack.agents)
    tally, broken, scratch = np.zeros((4, agents), np.int64), np.zeros(2, np.int64), Scratch.of(agents)
    for sources, size, at in spans(stack.base, stack.agents, stack.tau, kernel.extra):
        left = out[at:]
        stored = left[:size] if left.size >= size else np.empty(size, out.dtype)
        start = stack.block.start + at
        to = Destination(address(stored), CODES[out.dtype], exact, draw is not None, *(draw or (0, 0)), start)
        loop(sources, scratch, size, settings, to, tally, broken)
        if stored.size > left.size:
            left[:] = stored[: left.size]
            broken[1] -= np.isnan(stored[left.size :]).sum()  # what an infinite scale makes of the padding
    return tally[0], tally[1], tally[2], tally[3], int(broken[0]), int(broken[1])


@cache
def loop_of(formula: str) -> Any:
    """The loop of a formula; not compiled yet."""
    return import_module(f"agentmerge.kernels.cpu.loops.formulas.{formula}").merge
