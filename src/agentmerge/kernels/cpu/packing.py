"""Which elements of two arrays differ, and their values: marked, counted, taken out, put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.arguments import WIDTH, address

if TYPE_CHECKING:
    from agentmerge.tensors import Array


def mark(base: Array, agent: Array) -> Array:
    """See Backend.mark."""
    from agentmerge.kernels.cpu.loops import packing as loops

    marks = np.empty(-(-base.size // WIDTH), np.uint64)
    whole = base.size - base.size % WIDTH
    loops.mark(address(base), address(agent), base.itemsize, whole, marks)
    if whole < base.size:
        rest = np.zeros((2, WIDTH), f"u{base.itemsize}")
        for row, array in zip(rest, (base, agent), strict=True):
            row[: base.size - whole] = array[whole:].view(row.dtype)
        loops.mark(address(rest), address(rest) + rest.strides[0], base.itemsize, WIDTH, marks[-1:])
    return marks


def count(marks: Array, words: int) -> Array:
    """See Backend.count_marks."""
    from agentmerge.kernels.cpu.loops import packing as loops

    counts = np.full(-(-marks.size // words), words, np.int64)
    if counts.size:
        loops.count(marks, counts)
    return counts


def take(values: Array, marks: Array, count: int) -> Array:
    """See Backend.take."""
    from agentmerge.kernels.cpu.loops import packing as loops

    out, bits = np.empty(count + 1, values.dtype), f"u{values.itemsize}"
    loops.take[values.itemsize](values.view(bits), address(values), marks, out.view(bits), address(out))
    return out[:count]


def put(values: Array, marks: Array, old: Array, out: Array) -> None:
    """See Backend.put."""
    from agentmerge.kernels.cpu.loops import packing as loops
    from agentmerge.kernels.cpu.loops.vectors import PACKS

    if old is not out:  # vectors bring it along, but for the last word
        begin = max(marks.size - 1, 0) * WIDTH if PACKS[out.itemsize] else 0
        np.copyto(out[begin:], old[begin:])
    bits = f"u{out.itemsize}"
    loops.put[out.itemsize](values.view(bits), address(values), marks, address(old), out.view(bits), address(out))


def places(marks: Array, start: int, count: int) -> Array:
    """See Backend.places."""
    from agentmerge.kernels.cpu.loops import packing as loops

    out = np.empty(count, np.int32)
    loops.places(marks, start, out)
    return out
