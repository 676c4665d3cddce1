"""The compiled loops of sources/bits.py: which elements differ, and their values, taken out and put back.

Where a machine moves the marked elements of a vector in one instruction (AVX-512), that is done. Elsewhere few marks of
a word of 64 are walked from one to the next, and many are not branched on: each place is stored, and the next store
goes on top of it unless the mark is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled, inlined
from agentmerge.kernels.cpu.loops.signatures import INTS, WORDS
from agentmerge.kernels.cpu.loops.vectors import (
    LANES,
    PACKS,
    bits_of,
    load_f32,
    load_u16,
    lowest,
    mask,
    population,
    put_into,
    store,
    take_to,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.kernels.cpu.loops.compiled import Loop
    from agentmerge.tensors import Array

WORD = 64
MANY = 10
"""Marks of a word that are not walked one by one."""
ONE, LOW = np.uint64(1), np.uint64((1 << LANES) - 1)
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


@inlined
def _take_word(values: Array, first: int, left: Any, out: Array, p: Any) -> Any:
    """The marked values of one word, one by one."""
    while left:
        out[p] = values[first + lowest(left)]
        p += 1
        left &= left - ONE
    return p


@inlined
def _put_word(values: Array, first: int, left: Any, out: Array, p: Any) -> Any:
    """Values into the marked places of one word, one by one."""
    while left:
        out[first + lowest(left)] = values[p]
        p += 1
        left &= left - ONE
    return p


def take_walked(values: Array, _values: int, marks: Array, out: Array, _out: int) -> None:
    """See `take`; for any machine."""
    p: Any = np.int64(0)
    for w in range(marks.size):
        left: Any = marks[w]
        first = WORD * w
        if _walked(marks, w):
            p = _take_word(values, first, left, out, p)
        else:
            for j in range(WORD):
                out[p] = values[first + j]
                p += np.int64(left >> np.uint64(j) & ONE)


def put_walked(values: Array, _values: int, marks: Array, _old: int, out: Array, _out: int) -> None:
    """See `put`; for any machine."""
    p: Any = np.int64(0)
    for w in range(marks.size):
        left: Any = marks[w]
        first = WORD * w
        if _walked(marks, w):
            p = _put_word(values, first, left, out, p)
        else:
            for j in range(WORD):
                marked = left >> np.uint64(j) & ONE
                out[first + j] = values[p] if marked else out[first + j]
                p += np.int64(marked)


@inlined
def _load_u32(address: int) -> Any:
    return bits_of(load_f32(address))


def _by_vectors(size: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Taking and putting elements of 2 or 4 bytes, but for the last word of marks, behind which nothing is touched."""
    load = load_u16 if size == 2 else _load_u32

    def take(values: Array, from_: int, marks: Array, out: Array, to: int) -> None:
        p, last = np.int64(0), max(marks.size - 1, 0)
        for w in range(last):
            for part in range(0, WORD, LANES):
                left = marks[w] >> np.uint64(part) & LOW
                take_to(to + size * p, mask(left), load(from_ + size * (WORD * w + part)))
                p += population(left)
        if marks.size:
            _take_word(values, WORD * last, marks[last], out, p)

    def put(values: Array, from_: int, marks: Array, old: int, out: Array, to: int) -> None:
        p, last = np.int64(0), max(marks.size - 1, 0)
        for w in range(last):
            for part in range(0, WORD, LANES):
                left, at = marks[w] >> np.uint64(part) & LOW, size * (WORD * w + part)
                store(to + at, put_into(from_ + size * p, mask(left), load(old + at)))
                p += population(left)
        if marks.size:
            _put_word(values, WORD * last, marks[last], out, p)

    return take, put


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


def take_made(function: Callable[..., None], size: int) -> Loop:
    """The loop of a function that takes elements of 2 or 4 bytes, whose bits are taken as they are."""
    kind = _U16 if size == 2 else _U32
    return compiled(types.void(kind, types.int64, WORDS, kind, types.int64))(function)


def put_made(function: Callable[..., None], size: int) -> Loop:
    """That of one that puts them."""
    kind = _U16 if size == 2 else _U32
    return compiled(types.void(kind, types.int64, WORDS, types.int64, kind, types.int64))(function)


take = {size: take_made(_by_vectors(size)[0] if PACKS[size] else take_walked, size) for size in (2, 4)}
"""By bytes of an element: the marked `values` [n] one after another into `out`, which has room for one more; each with
its address."""
put = {size: put_made(_by_vectors(size)[1] if PACKS[size] else put_walked, size) for size in (2, 4)}
"""By bytes of an element: `values`, of which there is one more than marks, into the marked places of `out` [n], each
with its address. Where PACKS, all but the last WORD places take what is not marked from the address `old`; elsewhere
and behind them `out` holds it."""
