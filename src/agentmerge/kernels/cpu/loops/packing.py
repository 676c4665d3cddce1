"""The compiled loops of sources/bits.py: which elements differ, and their values, taken out and put back.

Of a word of 64 marks, few are walked from one to the next; many are not branched on: each place is stored and the next
store goes on top of it unless the mark is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.signatures import INTS, WORDS
from agentmerge.kernels.cpu.loops.vectors import LANES, bits_of, load_f32, load_u16, lowest, population, word

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.tensors import Array

WORD = 64
MANY = 10
"""Marks of a word that are not walked one by one."""
ONE = np.uint64(1)
_U16, _U32, _I32 = types.uint16[::1], types.uint32[::1], types.int32[::1]


@inlined
def _different(base: int, agent: int, size: int, i: int) -> Any:
    if size == 2:
        return word(load_u16(base + 2 * i) != load_u16(agent + 2 * i))
    return word(bits_of(load_f32(base + 4 * i)) != bits_of(load_f32(agent + 4 * i)))


@compiled(types.void(types.int64, types.int64, types.int64, types.int64, WORDS))
def mark(base: int, agent: int, size: int, elements: int, marks: Array) -> None:
    """Which elements of two arrays differ, in bits.

    Args:
        base: the address of elements of 2 or 4 bytes.
        agent: another one.
        size: bytes of an element.
        elements: a multiple of 64.
        marks: written, bit i % 64 of word i // 64.
    """
    for w in range(elements // WORD):
        found = np.uint64(0)
        for part in range(0, WORD, LANES):
            found |= _different(base, agent, size, w * WORD + part) << np.uint64(part)
        marks[w] = found


@compiled(types.void(WORDS, INTS))
def count(marks: Array, counts: Array) -> None:
    """How many marks each part of the words has; as many words to each, the last may have fewer."""
    words = counts[0]
    for part in range(counts.size):
        found = 0
        for w in range(part * words, min((part + 1) * words, marks.size)):
            found += population(marks[w])
        counts[part] = found


@inlined
def _walked(marks: Array, w: int) -> Any:
    """Whether the marks of a word are few, or the word is the last: behind its elements nothing may be touched."""
    return population(marks[w]) <= MANY or w == marks.size - 1


def _take(values: Array, marks: Array, out: Array) -> None:
    p = np.int64(0)
    for w in range(marks.size):
        left, first = marks[w], WORD * w
        if _walked(marks, w):
            while left:
                out[p] = values[first + lowest(left)]
                p += 1
                left &= left - ONE
        else:
            for j in range(WORD):
                out[p] = values[first + j]
                p += np.int64(left >> np.uint64(j) & ONE)


def _put(values: Array, marks: Array, out: Array) -> None:
    p = np.int64(0)
    for w in range(marks.size):
        left, first = marks[w], WORD * w
        if _walked(marks, w):
            while left:
                out[first + lowest(left)] = values[p]
                p += 1
                left &= left - ONE
        else:
            for j in range(WORD):
                marked = left >> np.uint64(j) & ONE
                out[first + j] = values[p] if marked else out[first + j]
                p += np.int64(marked)


@compiled(types.void(WORDS, types.int64, _I32))
def places(marks: Array, start: int, out: Array) -> None:
    """The flat places of the marks, the first of which is that of element `start`."""
    p = 0
    for w in range(marks.size):
        left = marks[w]
        while left:
            out[p] = np.int32(start + WORD * w + lowest(left))
            p += 1
            left &= left - ONE


def _by_size(function: Callable[..., Any]) -> dict[int, Any]:
    """The loop for elements of 2 and of 4 bytes; their bits are taken as they are."""
    return {size: compiled(types.void(kind, WORDS, kind))(function) for size, kind in ((2, _U16), (4, _U32))}


take = _by_size(_take)
"""By bytes of an element: the marked `values` [n] one after another into `out`, which has room for one more."""
put = _by_size(_put)
"""By bytes of an element: `values`, of which there is one more than marks, into the marked places of `out` [n]."""
