"""Addressed randomness: the bits at an element's index, the same on every machine. Knows no tensors.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key comes
from sha256(seed, purpose, agent, tensor name); the counter is the element's index // 4, the lane its index % 4. So
neither block size, worker count nor runner can change a draw.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


def stream_key(seed: int, purpose: str, agent: str, tensor: str) -> tuple[int, int]:
    """The two 32-bit key words of one stream: the first 8 bytes of sha256 over the four parts, little-endian."""
    digest = sha256("\x00".join((str(seed), purpose, agent, tensor)).encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def philox(counter: np.ndarray[Any, Any], key: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Philox4x32-10.

    Args:
        counter: uint32 [n, 4].
        key: two 32-bit words.

    Returns:
        uint32 [n, 4].
    """
    x0, x1, x2, x3 = (counter[:, lane].astype(np.uint64) for lane in range(4))
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(ROUNDS):
        left, right = x0 * np.uint64(MULTIPLIERS[0]), x2 * np.uint64(MULTIPLIERS[1])
        x0, x1, x2, x3 = (right >> _HIGH) ^ x1 ^ k0, right & _LOW, (left >> _HIGH) ^ x3 ^ k1, left & _LOW
        k0, k1 = (k0 + np.uint64(WEYL[0])) & _LOW, (k1 + np.uint64(WEYL[1])) & _LOW
    return np.stack([x0, x1, x2, x3], axis=1).astype(np.uint32)


def random_bits(key: tuple[int, int], start: int, count: int) -> np.ndarray[Any, Any]:
    """32 uniform bits for each of the elements [start, start + count): uint32 [count]."""
    first, last = start // 4, -(-(start + count) // 4)
    index = np.arange(first, last, dtype=np.uint64)
    counter = np.zeros((index.size, 4), dtype=np.uint32)
    counter[:, 0] = (index & _LOW).astype(np.uint32)
    counter[:, 1] = (index >> _HIGH).astype(np.uint32)
    return philox(counter, key).reshape(-1)[start - 4 * first :][:count]
