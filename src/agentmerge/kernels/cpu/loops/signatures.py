"""The numba types of what loops are called with, taken from the declarations of the NamedTuples."""

from __future__ import annotations

from typing import Any

from numba import types

from agentmerge.kernels.arguments import Destination, Scratch, Sources, Sums
from agentmerge.kernels.formulas import kinds_of
from agentmerge.tensors import Array

INTS, FLOATS, KEYS = types.int64[::1], types.float32[::1], types.uint32[::1]
COUNTS, SMALL_COUNTS, DOUBLES = types.int64[:, ::1], types.int32[:, ::1], types.float64[:, ::1]


def named(of: type[tuple[Any, ...]], fields: list[Any]) -> Any:
    """The numba type of a NamedTuple."""
    uniform = len(set(fields)) == 1
    build: Any = types.NamedUniTuple if uniform else types.NamedTuple
    return build(fields[0], len(fields), of) if uniform else build(fields, of)


def settings_type(of: type[tuple[Any, ...]]) -> Any:
    """That of a formula's settings, as `formulas.typed` makes them."""
    kinds = {int: types.int64, float: types.float32, Array: FLOATS}
    return named(of, [kinds[kind] if kind in kinds else settings_type(kind) for kind in kinds_of(of)])


SOURCES = named(Sources, [INTS] * 5)
WORDS = types.uint64[::1]
SCRATCH = named(Scratch, [types.float32[:, ::1], INTS, WORDS])
SUMS = named(Sums, [DOUBLES, INTS, DOUBLES])
DESTINATION = named(Destination, [types.int64] * 2 + [types.boolean] * 2 + [types.int64] * 3)
