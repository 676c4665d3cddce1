"""Numbers that are the base's but for how an agent stores them: a rounding is no training.

An element of an agent is *restored* to the base's number where it equals

    base rounded to the dtype that the agent stores it in, to nearest, ties to even;
    or, where the agent stores codes and factors, the number that the base's nearest code stands for.

Any other element stays what it is. This needs one tensor of two sources, so it is done block by block, after reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from agentmerge import kernels
from agentmerge.tensors import DTYPES, Array, Stack, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agentmerge.sources.source import Stored
    from agentmerge.tensors import Block

HOLDS = {"F64": {"F64", "F32", "F16", "BF16"}, "F32": {"F32", "F16", "BF16"}, "F16": {"F16"}, "BF16": {"BF16"}}
"""By dtype, those whose every number it holds exactly."""
STEP = 1 << 16
"""Elements that the definition works on at a time."""


def rounds(dtype: str, stored: Iterable[Stored]) -> bool:
    """Whether storing numbers of a dtype so may round them."""
    return any(part.factors is not None or dtype not in HOLDS.get(part.dtype, ()) for part in stored)


def restored(block: Block, base: Array, read: Array, stored: Sequence[Stored], out: Array) -> Array:
    """An agent's numbers, the base's where they differ by storage alone.

    Args:
        block: of the base's tensor.
        base: [n], as read.
        read: [n], the agent's, as read.
        stored: how the agent stores the whole tensor.
        out: float32 [n], written; memory for a multiple of `kernels.arguments.WIDTH` elements lies behind it.

    Returns:
        `out`.
    """
    plain = [part for part in stored if part.factors is None]
    backend = kernels.choose(Stack(block, base, (read,), ("",)), *(part.dtype for part in plain))
    if backend is not None and len(stored) == len(plain) == 1:
        backend.restore(base, read, plain[0].dtype, out)
        return out
    return defined(block, base, read, stored, out)


def defined(block: Block, base: Array, read: Array, stored: Sequence[Stored], out: Array) -> Array:
    """The definition of `restored`, for any `out` [n]."""
    first = 0
    with np.errstate(all="ignore"):
        for part in stored:
            for low, high in _steps(max(block.start, first), min(block.stop, first + part.elements)):
                here = slice(low - block.start, high - block.start)
                out[here] = _restored(base[here], read[here], part, low - first)
            first += part.elements
    return out


def _steps(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for low in range(start, stop, STEP):
        yield low, min(low + STEP, stop)


def _restored(base: Array, read: Array, stored: Stored, start: int) -> Array:
    """The definition: float32 [n].

    Args:
        base: [n].
        read: [n].
        stored: how the agent stores these and others.
        start: the place of the first of them there.
    """
    numbers, values = as_float32(base), as_float32(read)
    if stored.factors is None:
        found = _rounded(base, stored.dtype)
    else:
        found = _coded(numbers, stored.dtype, stored.factors(start, start + base.size))
    same = np.zeros(base.size, np.bool_)
    for candidate in found:
        same |= candidate == values
    return np.where(same, numbers, values)


def _rounded(base: Array, dtype: str) -> Iterator[Array]:
    """What the base's numbers are in a dtype, float32 [n]; of float64 also by way of float32, as torch casts."""
    yield as_float32(as_float32(base).astype(DTYPES[dtype]))
    if base.dtype == np.float64:
        yield as_float32(base.astype(DTYPES[dtype]))


def _coded(numbers: Array, dtype: str, factors: Array) -> Iterator[Array]:
    """What the base's numbers are as codes times factors, read as bfloat16: float32 [n].

    Quantisers divide by the factor or multiply by its inverse, in float32 or in bfloat16; a number that lies within
    their difference of the middle between two codes may get either.
    """
    target, half = DTYPES[dtype], DTYPES["BF16"]
    largest = np.float32(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
    quotient = numbers / factors
    short = as_float32(as_float32(numbers.astype(half)) / as_float32(factors.astype(half))).astype(half)
    for scaled in (quotient, numbers * (np.float32(1) / factors), as_float32(short)):
        codes = np.clip(scaled, -largest, largest).astype(target)
        yield as_float32((as_float32(codes) * factors).astype(half))
