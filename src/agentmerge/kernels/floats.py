"""Stored numbers as float32 vectors and back: decoding, both roundings, and their random bits. Knows no merging.

The definitions are numpy's and ml_dtypes' casts, `tensors.stochastic_round` and `randomness.random_bits`.
"""

from __future__ import annotations

from agentmerge.kernels.vectors import (
    Lanes,
    bits_of,
    ceil,
    fill_f32,
    fill_u32,
    fill_u64,
    float_to_half,
    floor,
    from_bits,
    half_to_float,
    inlined,
    interleave,
    load_f32,
    load_u16,
    magnitude,
    maximum,
    narrow,
    select,
    steps_u64,
    store,
    to_integer,
    widen,
)
from agentmerge.randomness import MULTIPLIERS, ROUNDS, WEYL

BF16, F16, F32 = 0, 1, 2
"""Dtype codes, as jitted code sees them."""

SIGN, INF, QUIET = 0x80000000, 0x7F800000, 0x7FC00000
"""The float32 bits of -0.0, of inf and of the usual NaN."""

_M0, _M1 = MULTIPLIERS
_W0, _W1 = WEYL
_LOW = 0xFFFFFFFF
_TWO_32 = 2.0**32
_INFINITY = float("inf")
_HALF_MANTISSA, _HALF_LOWEST = (
    10,
    127 - 14,
)  # stored mantissa bits, biased exponent of the smallest normal number


@inlined
def decode(address: int, code: int, element: int) -> Lanes:
    """The stored elements [element, element + 64) as float32."""
    if code == F32:
        return load_f32(address + 4 * element)
    stored = load_u16(address + 2 * element)
    if code == BF16:
        return from_bits(widen(stored) << 16)
    return _from_half(stored)


@inlined
def _from_half(stored: Lanes) -> Lanes:
    """float32 of float16; a NaN keeps its bits as in numpy, where the hardware would quiet it."""
    value, bits = half_to_float(stored), widen(stored)
    nan = (bits & 0x8000) << 16 | (bits & 0x7FFF) << 13 | INF
    return select(value != value, from_bits(nan), value)


@inlined
def encode(value: Lanes, address: int, code: int, element: int) -> None:
    """Store float32 values that the dtype holds exactly (see `round_to`)."""
    if code == F32:
        store(address + 4 * element, value)
    elif code == BF16:
        store(address + 2 * element, narrow(bits_of(value) >> 16))
    else:
        store(address + 2 * element, float_to_half(value))


@inlined
def round_to(value: Lanes, code: int, draw: bool, random: Lanes) -> Lanes:
    """Round float32 to a dtype, the result as float32: to nearest, or by 32 random bits per lane if `draw`."""
    if code == F32:
        return value
    if code == BF16:
        return _to_bfloat16(value, draw, random)
    return half_to_float(float_to_half(_to_half_steps(value, random) if draw else value))


@inlined
def _to_bfloat16(value: Lanes, draw: bool, random: Lanes) -> Lanes:
    """bfloat16 is float32 less its last 16 bits: a carry out of them rounds, subnormals and overflow included."""
    bits = bits_of(value)
    if draw:
        up = select(bits << 16 > random, bits + 0x10000, bits)
    else:
        up = bits + 0x7FFF + (bits >> 16 & 1)
    nan = bits & SIGN | QUIET
    return from_bits(select(value == value, up, nan) & 0xFFFF0000)


@inlined
def _to_half_steps(value: Lanes, random: Lanes) -> Lanes:
    """`stochastic_round` for float16, exact in float32: afterwards `float_to_half` changes overflows alone."""
    size = magnitude(value)
    exponent = maximum(bits_of(size) >> 23, fill_u32(_HALF_LOWEST))
    steps = size * from_bits(fill_u32(2 * 127 + _HALF_MANTISSA) - exponent << 23)
    whole = floor(steps)
    finite = size < _INFINITY
    fraction = select(finite, steps - whole, fill_f32(0.0))
    up = to_integer(ceil(fraction * _TWO_32)) > random
    rounded = select(up, whole + 1.0, whole) * from_bits(exponent - _HALF_MANTISSA << 23)
    return from_bits(bits_of(select(finite, rounded, size)) | bits_of(value) & SIGN)


@inlined
def random_lanes(key0: int, key1: int, start: int) -> Lanes:
    """Philox4x32-10: 32 uniform bits for each of the elements [start, start + 64), start a multiple of 4."""
    counter = steps_u64(start >> 2)
    x0, x1 = counter & _LOW, counter >> 32
    x2, x3 = fill_u64(0), fill_u64(0)
    for _ in range(ROUNDS):
        left, right = x0 * _M0, x2 * _M1
        x0, x1, x2, x3 = (
            (right >> 32 ^ x1 ^ key0) & _LOW,
            right & _LOW,
            (left >> 32 ^ x3 ^ key1) & _LOW,
            left & _LOW,
        )
        key0, key1 = (key0 + _W0) & _LOW, (key1 + _W1) & _LOW
    return interleave(x0, x1, x2, x3)
