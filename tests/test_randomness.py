"""The random bits are Philox4x32-10, and any way of asking for them gives the same."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.randomness import philox, random_bits, stream_key

KNOWN = {  # Random123's kat_vectors: counter, key, answer
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}
KEY = stream_key(0, "rounding", "", "model.norm.weight")


@pytest.mark.parametrize("vector", KNOWN)
def test_the_published_vectors_come_out(vector: str) -> None:
    counter, key, expected = KNOWN[vector]
    np.testing.assert_array_equal(philox(np.array([counter], np.uint32), key)[0], expected)


def test_all_vectors_at_once_come_out_too() -> None:
    counters = np.array([KNOWN["zeros"][0], (5, 6, 7, 8)], np.uint32)
    both = philox(counters, (0, 0))
    np.testing.assert_array_equal(both[0], KNOWN["zeros"][2])
    np.testing.assert_array_equal(both[1], philox(counters[1:], (0, 0))[0])


@given(start=st.integers(0, 60), count=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_any_slice_is_a_slice_of_the_same_stream(start: int, count: int) -> None:
    whole = random_bits(KEY, 0, 128)
    part = random_bits(KEY, start, count)
    assert part.dtype == np.uint32
    np.testing.assert_array_equal(part, whole[start : start + count])


@pytest.mark.parametrize("start", [2**34 - 8, 2**34 - 3, 2**40 + 1])
def test_elements_beyond_32_bits_of_counter_have_bits_of_their_own(start: int) -> None:
    found = random_bits(KEY, start, 16)
    counter = [start // 4 & 0xFFFFFFFF, start // 4 >> 32, 0, 0]
    expected = philox(np.array([counter], np.uint32), KEY)[0]
    np.testing.assert_array_equal(found[: 4 - start % 4], expected[start % 4 :])
    assert not np.array_equal(found, random_bits(KEY, (start + 8) % 2**34, 16))


def test_lane_and_counter_are_index_mod_4_and_index_div_4() -> None:
    bits = random_bits(KEY, 0, 12)
    for i in range(12):
        assert bits[i] == philox(np.array([[i // 4, 0, 0, 0]], np.uint32), KEY)[0, i % 4]


def test_every_part_of_the_address_changes_the_key() -> None:
    keys = {
        stream_key(*parts)
        for parts in [
            (0, "rounding", "", "w"),
            (1, "rounding", "", "w"),
            (0, "dare", "", "w"),
            (0, "rounding", "code", "w"),
            (0, "rounding", "", "v"),
            (0, "rounding", "w", ""),
            (0, "roundingw", "", ""),
        ]
    }
    assert len(keys) == 7


def test_the_key_is_the_first_eight_bytes_of_sha256_and_never_changes() -> None:
    assert stream_key(0, "rounding", "", "w") == stream_key(0, "rounding", "", "w")
    assert all(0 <= word < 2**32 for word in stream_key(2**64 - 1, "dare", "code", "model.norm.weight"))
    digest = sha256(b"7\0dare\0code\0w").digest()
    assert stream_key(7, "dare", "code", "w") == tuple(int.from_bytes(digest[i : i + 4], "little") for i in (0, 4))


def test_the_bits_are_even() -> None:
    bits = random_bits(KEY, 0, 1 << 16)
    share = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(share - 0.5) < 0.002
