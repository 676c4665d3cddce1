"""Which elements of two arrays differ, and their values: the numpy definitions, and the compiled twins where they fit.

Marks are words: bit i % 64 of word i // 64 is 1 where element i differs; what is behind the last element is 0. In a
file they are bytes, which are the same bits in the same order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from agentmerge import kernels
from agentmerge.tensors import Block, Stack, TensorSpec

if TYPE_CHECKING:
    from agentmerge.kernels import Backend
    from agentmerge.tensors import Array

WORD = 64
"""Elements of a word of marks."""
LITTLE = np.dtype("<u8")


def mark(base: Array, agent: Array) -> Array:
    """Where two arrays of one dtype differ in their bits, so that -0.0 and the payload of a NaN count.

    Args:
        base: [n], contiguous.
        agent: [n], contiguous.

    Returns:
        uint64 [ceil(n / 64)].
    """
    if (backend := _backend(base, agent)) is not None:
        return backend.mark(base, agent)
    bits = f"u{base.itemsize}"
    packed = np.packbits(base.view(bits) != agent.view(bits), bitorder="little")
    return as_words(packed, base.size)


def count(marks: Array, elements: int) -> Array:
    """How many marks there are among each so many elements, int64 [ceil(words * 64 / elements)].

    Args:
        marks: uint64 [words].
        elements: a multiple of 64.
    """
    if kernels.compiling():
        return kernels.cpu.count_marks(marks, elements // WORD)
    words = elements // WORD
    padded = np.concatenate([marks, np.zeros(-marks.size % words, np.uint64)])
    found: Array = _booleans(padded).reshape(-1, elements).sum(axis=1, dtype=np.int64)
    return found


def take(values: Array, marks: Array, count: int) -> Array:
    """The marked values, [count].

    Args:
        values: [n].
        marks: uint64 [ceil(n / 64)].
        count: how many marks there are.
    """
    if (backend := _backend(values)) is not None:
        return backend.take(values, marks, count)
    found: Array = values[_booleans(marks)[: values.size]]
    return found


def put(values: Array, marks: Array, old: Array, out: Array) -> None:
    """Values in the marked places, what was there before in the others.

    Args:
        values: [marks + 1]: one more than there are marks, whatever it is.
        marks: uint64 [ceil(n / 64)].
        old: [n]; it may be `out`.
        out: [n], written.
    """
    if (backend := _backend(old, out)) is not None:
        backend.put(values, marks, old, out)
        return
    bits = f"u{out.itemsize}"
    np.copyto(out.view(bits), old.view(bits))
    out.view(bits)[_booleans(marks)[: out.size]] = values[:-1].view(bits)


def places(marks: Array, start: int, count: int) -> Array:
    """The flat places of the marks, int32 [count].

    Args:
        marks: uint64 [words].
        start: the flat index of the first element.
        count: how many marks there are.
    """
    if kernels.compiling():
        return kernels.cpu.places(marks, start, count)
    return (np.flatnonzero(_booleans(marks)) + start).astype(np.int32)


def as_bytes(marks: Array, elements: int) -> Array:
    """Marks as a file has them, uint8 [ceil(elements / 8)]."""
    return marks.astype(LITTLE, copy=False).view(np.uint8)[: -(-elements // 8)]


def as_words(data: Array, elements: int) -> Array:
    """The marks of so many elements, uint64 [ceil(elements / 64)], from bytes as a file has them."""
    words = np.zeros(-(-elements // WORD), LITTLE)
    words.view(np.uint8)[: data.size] = data
    return words.astype(np.uint64, copy=False)


def marked(found: Array, elements: int) -> Array:
    """The marks of so many elements at these places, uint64 [ceil(elements / 64)].

    Args:
        found: increasing places, each in [0, elements).
        elements: of which some are marked.
    """
    flags = np.zeros(elements, np.uint8)
    flags[found] = 1
    return as_words(np.packbits(flags, bitorder="little"), elements)


def beyond(marks: Array, elements: int) -> bool:
    """Whether anything is marked behind the last of so many elements."""
    return bool(elements % WORD) and bool(marks[-1] >> np.uint64(elements % WORD))


def parted(marks: Array, skip: int, elements: int) -> tuple[int, Array]:
    """Of marks, those of some elements in their midst: how many lie before them, and theirs, from bit 0 on.

    Args:
        marks: uint64 [words].
        skip: elements before them.
        elements: of them.

    Returns:
        a count, and uint64 [ceil(elements / 64)].
    """
    flags = _booleans(marks)
    return int(flags[:skip].sum()), as_words(np.packbits(flags[skip : skip + elements], bitorder="little"), elements)


def _booleans(marks: Array) -> Array:
    return np.unpackbits(as_bytes(marks, marks.size * WORD), bitorder="little").view(np.bool_)


def _backend(*arrays: Array) -> Backend | None:
    """What compiles for these: the place and the name of a stack do not matter here."""
    block = Block(TensorSpec("", "", (arrays[0].size,)), 0, arrays[0].size)
    return kernels.choose(Stack(block, arrays[0], (arrays[-1],), ())) if sys.byteorder == "little" else None
