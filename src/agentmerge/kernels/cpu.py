"""The fused kernels for CPUs: count, integrity and ram on numpy arrays, equal to their definitions bit for bit.

One pass over memory each. numba is imported at the first call, or by `warm_up` in the background. Knows no statistics
and no methods: plain arrays in and out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.rule import Target
from agentmerge.tensors import DTYPES, Array

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_AGENTS = 64

_CODES = {DTYPES[name]: code for code, name in enumerate(("BF16", "F16", "F32"))}
"""The codes of floats.py, which would import numba."""
_LANES = 64
"""A multiple of vectors.LANES, which would import numba."""


def supports(base: Array, agents: Sequence[Array], out_dtype: str | None = None) -> bool:
    """Whether the kernels take these arrays (BF16, F16 or F32, contiguous, 1 to 64 agents) and this output dtype."""
    arrays = (base, *agents)
    return (
        1 <= len(agents) <= MOST_AGENTS
        and all(array.dtype in _CODES and array.flags.c_contiguous for array in arrays)
        and (out_dtype is None or DTYPES.get(out_dtype) in _CODES)
    )


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache; meant for a thread while headers are read."""
    from agentmerge.kernels import counting, merging  # noqa: F401


def count(
    base: Array, agents: Sequence[Array], threshold: float, key: int, start: int
) -> tuple[Array, Array, Array, Array, Array]:
    """survey.Overlap and survey.Integrity of one block in one pass.

    Args:
        base: [n], stored dtype.
        agents: [n] each, stored dtypes in any mix.
        threshold: of a change.
        key: 32 bits, of the tensor's fingerprint.
        start: flat index of base[0] in its tensor, a multiple of 4.

    Returns:
        exactly int64 [agents, agents], different int64 [agents], nan and inf int64 [1 + agents], fingerprint uint64
        [1 + agents].
    """
    from agentmerge.kernels import counting

    _check(base, *agents)
    n = len(agents)
    exactly, different = np.zeros((n, n), np.int64), np.zeros(n, np.int64)
    nan, inf, fingerprint = _integrity(n)
    for pieces, at in _pieces((base, *agents)):
        sources = _sources(pieces)
        counting.count(*sources, pieces[0].size, threshold, key, start + at, exactly, different, nan, inf, fingerprint)
    return exactly, different, nan, inf, fingerprint


def integrity(base: Array, agents: Sequence[Array], key: int, start: int) -> tuple[Array, Array, Array]:
    """survey.Integrity alone: nan and inf int64 [1 + agents], fingerprint uint64 [1 + agents]; see `count`."""
    from agentmerge.kernels import counting

    _check(base, *agents)
    answer = _integrity(len(agents))
    for pieces, at in _pieces((base, *agents)):
        counting.integrity(*_sources(pieces), pieces[0].size, key, start + at, *answer)
    return answer


def ram(
    base: Array,
    agents: Sequence[Array],
    threshold: float,
    scale: Array,
    weight: Array,
    out: Array,
    draw: tuple[int, int] | None,
    start: int,
) -> tuple[Array, Array, Array, Array, int, int]:
    """methods.Ram.merge, Cast.apply and survey.observe_rounding in one pass; the result goes to `out`.

    Args:
        base: [n], stored dtype.
        agents: [n] each, stored dtypes in any mix.
        threshold: of a change.
        scale: float32 [agents], lambda.
        weight: float32 [agents].
        out: [n], BF16, F16 or F32; written.
        draw: Philox key of stochastic rounding; None rounds to nearest.
        start: flat index of base[0] in its tensor, a multiple of 4.

    Returns:
        changed, lost, unique, survived int64 [agents]; overflow, non_finite: the fields of RoundingCounts.
    """
    from agentmerge.kernels import merging

    _check(base, *agents, out)
    exact = out.dtype == np.float32 or {base.dtype, *(agent.dtype for agent in agents)} == {out.dtype}
    scales, weights = np.array(scale, np.float32), np.array(weight, np.float32)
    tally, broken = np.zeros((4, len(agents)), np.int64), np.zeros(2, np.int64)
    key0, key1 = draw or (0, 0)
    for pieces, at in _pieces((base, *agents)):
        size, room = pieces[0].size, out[at:]
        target = room[:size] if room.size >= size else np.empty(size, out.dtype)
        to = Target(_address(target), _CODES[out.dtype], exact, draw is not None, key0, key1, start + at)
        merging.ram(*_sources(pieces), size, threshold, scales, weights, to, tally, broken)
        if target.size > room.size:
            room[:] = target[: room.size]
    return tally[0], tally[1], tally[2], tally[3], int(broken[0]), int(broken[1])


def _integrity(agents: int) -> tuple[Array, Array, Array]:
    zeros = np.zeros((2, agents + 1), np.int64)
    return zeros[0], zeros[1], np.zeros(agents + 1, np.uint64)


def _pieces(arrays: Sequence[Array]) -> list[tuple[tuple[Array, ...], int]]:
    """The whole vectors of the arrays, then the rest padded with zeros, which count as nothing; each with its place."""
    elements = arrays[0].size
    whole = elements - elements % _LANES
    pieces = [(tuple(array[:whole] for array in arrays), 0)] if whole else []
    if whole < elements:
        padding = _LANES - elements % _LANES
        rest = tuple(np.concatenate([array[whole:], np.zeros(padding, array.dtype)]) for array in arrays)
        pieces.append((rest, whole))
    return pieces


def _check(*arrays: Array) -> None:
    """Compiled code works on raw addresses, so what it reads and writes must be there."""
    for array in arrays:
        if (
            array.shape != arrays[0].shape
            or array.ndim != 1
            or not array.flags.c_contiguous
            or array.dtype not in _CODES
        ):
            raise ValueError(
                f"kernels: found {array.dtype} {list(array.shape)} with strides {array.strides}, expected contiguous"
                f" bfloat16, float16 or float32 {list(arrays[0].shape[:1])}. Ask `supports` first."
            )


def _sources(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Addresses and dtype codes, int64 [1 + agents] each; the arrays must outlive them."""
    addresses = np.array([_address(array) for array in arrays], np.int64)
    return addresses, np.array([_CODES[array.dtype] for array in arrays], np.int64)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
