"""Stored numbers as float32 vectors and back: decoding, both roundings, and their random bits. Knows no merging.

The definitions are numpy's and ml_dtypes' casts, `tensors.stochastic_round` and `randomness.random_bits`.
"""

from __future__ import annotations

from agentmerge.kernels.arguments import BF16, F32
from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.vectors import (
    Lanes,
    bits_of,
    ceil,
    fill_f32,
    fill_u32,
    fill_u64,
    floor,
    from_bits,
    interleave,
    load_f32,
    load_u16,
    magnitude,
    maximum,
    narrow,
    prefetch,
    select,
    steps_u64,
    store,
    to_integer,
    widen,
)
from agentmerge.randomness import MULTIPLIERS, ROUNDS, WEYL

SIGN, INF, QUIET = 0x80000000, 0x7F800000, 0x7FC00000
"""The float32 bits of -0.0, of inf and of the usual NaN."""

_AHEAD = 4096
"""Bytes between a load and its prefetch, about what one round over the agents hides."""
_M0, _M1 = MULTIPLIERS
_W0, _W1 = WEYL
LOW_WORD = 0xFFFFFFFF
"""The lower 32 bits of 64."""
_TWO_32 = 2.0**32
INFINITY = float("inf")
_HALF_MANTISSA, _HALF_LOWEST = 10, 127 - 14  # stored mantissa bits, biased exponent of the smallest normal number
_HALF_BIAS = 127 - 15 << 23
_HALF_SMALLEST, _HALF_NORMAL = _HALF_LOWEST << 23, 2.0**-14  # the smallest normal number's bits, and itself
_HALF_OVERFLOW = 2.0**16


@inlined
def decode(address: int, code: int, element: int) -> Lanes:
    """The stored elements [element, element + 64) as float32."""
    if code == F32:
        return load_f32(address + 4 * element)
    place = address + 2 * element
    prefetch(place + _AHEAD)
    prefetch(place + _AHEAD + 64)
    stored = load_u16(place)
    if code == BF16:
        return from_bits(widen(stored) << 16)
    return _from_half(stored)


@inlined
def _from_half(stored: Lanes) -> Lanes:
    """float32 of float16 bits, NaN's included; by integers, as the instruction quiets NaN and not every CPU has it."""
    wide = widen(stored)
    size = (wide & 0x7FFF) << 13
    normal = from_bits(size + _HALF_BIAS)
    small = from_bits(size + _HALF_SMALLEST) - _HALF_NORMAL
    value = select(size < 1 << 23, small, select(size < 0x7C00 << 13, normal, from_bits(size | INF)))
    return from_bits(bits_of(value) | (wide & 0x8000) << 16)


@inlined
def encode(value: Lanes, address: int, code: int, element: int) -> None:
    """Store float32 values that the dtype holds exactly (see `round_to`)."""
    if code == F32:
        store(address + 4 * element, value)
    elif code == BF16:
        store(address + 2 * element, narrow(bits_of(value) >> 16))
    else:
        store(address + 2 * element, _half_bits(value))


@inlined
def _half_bits(value: Lanes) -> Lanes:
    """The float16 bits of float32 values that are float16 numbers; adding 0.5 lines the subnormals up."""
    bits, size = bits_of(value), magnitude(value)
    small = bits_of(size + 0.5)
    normal = bits_of(size) - _HALF_BIAS >> 13
    finite = select(size < _HALF_NORMAL, small, normal)
    special = select(size == size, fill_u32(0x7C00), fill_u32(0x7E00))
    return narrow(select(size < INFINITY, finite, special) & 0x7FFF | bits >> 16 & 0x8000)


@inlined
def round_to(value: Lanes, code: int, draw: bool, random: Lanes) -> Lanes:
    """Round float32 to a dtype, the result as float32: to nearest, or by 32 random bits per lane if `draw`."""
    if code == F32:
        return value
    if code == BF16:
        return _to_bfloat16(value, draw, random)
    return _to_half(value, draw, random)


@inlined
def _to_bfloat16(value: Lanes, draw: bool, random: Lanes) -> Lanes:
    """bfloat16 is float32 less its last 16 bits: a carry out of them rounds, subnormals and overflow included."""
    bits = bits_of(value)
    drawn = select(bits << 16 > random, bits + 0x10000, bits)
    up = drawn if draw else bits + 0x7FFF + (bits >> 16 & 1)
    nan = bits & SIGN | QUIET
    return from_bits(select(value == value, up, nan) & 0xFFFF0000)


@inlined
def _to_half(value: Lanes, draw: bool, random: Lanes) -> Lanes:
    size = magnitude(value)
    rounded = _drawn_half(size, random) if draw else _nearest_half(size)
    rounded = select(rounded < _HALF_OVERFLOW, rounded, from_bits(fill_u32(INF)))
    return from_bits(bits_of(select(size == size, rounded, size)) | bits_of(value) & SIGN)


@inlined
def _nearest_half(size: Lanes) -> Lanes:
    """To 10 stored bits; below the normal numbers to multiples of 2^-24, which is what 0.5 can be increased by."""
    bits = bits_of(size)
    normal = from_bits(bits + 0xFFF + (bits >> 13 & 1) & 0xFFFFE000)
    return select(size < _HALF_NORMAL, size + 0.5 - 0.5, normal)


@inlined
def _drawn_half(size: Lanes, random: Lanes) -> Lanes:
    """`stochastic_round` for float16, but for overflow; every step is exact in float32."""
    exponent = maximum(bits_of(size) >> 23, fill_u32(_HALF_LOWEST))
    steps = size * from_bits(fill_u32(2 * 127 + _HALF_MANTISSA) - exponent << 23)
    whole = floor(steps)
    fraction = select(size < INFINITY, steps - whole, fill_f32(0.0))
    up = to_integer(ceil(fraction * _TWO_32)) > random
    return select(up, whole + 1.0, whole) * from_bits(exponent - _HALF_MANTISSA << 23)


@inlined
def random_lanes(key0: int, key1: int, start: int) -> Lanes:
    """Philox4x32-10: 32 uniform bits for each of the elements [start, start + 64), start a multiple of 4."""
    counter = steps_u64(start >> 2)
    x0, x1 = counter & LOW_WORD, counter >> 32
    x2, x3 = fill_u64(0), fill_u64(0)
    for _ in range(ROUNDS):
        left, right = x0 * _M0, x2 * _M1
        x0, x1, x2, x3 = (
            (right >> 32 ^ x1 ^ key0) & LOW_WORD,
            right & LOW_WORD,
            (left >> 32 ^ x3 ^ key1) & LOW_WORD,
            left & LOW_WORD,
        )
        key0, key1 = (key0 + _W0) & LOW_WORD, (key1 + _W1) & LOW_WORD
    return interleave(x0, x1, x2, x3)
