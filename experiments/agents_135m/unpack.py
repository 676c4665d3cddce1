"""The numbers that packed blocks of GGUF stand for: q levels, d and m halves, all of them as ggml lays them out."""

from __future__ import annotations

import numpy as np


def unpack(packed: np.ndarray, kind: str) -> np.ndarray:
    """float32 [rows, columns].

    Args:
        packed: uint8 [rows, bytes of a row].
        kind: F32, Q4_1, Q5_0, Q8_0, Q4_K or Q6_K.
    """
    rows, packed = len(packed), np.ascontiguousarray(packed)
    if kind == "F32":
        return packed.view(np.float32).copy()
    size, numbers = BLOCKS[kind]
    return numbers(packed.reshape(-1, size)).reshape(rows, -1)


def q4_1(blocks: np.ndarray) -> np.ndarray:
    """Q d + m with q in 0..15: d, m, then 16 bytes whose low halves come first. float32 [blocks, 32]."""
    return halves(blocks[:, 4:]) * half(blocks[:, :2]) + half(blocks[:, 2:4])


def q5_0(blocks: np.ndarray) -> np.ndarray:
    """(q - 16) d with q in 0..31: d, 32 fifth bits, 16 bytes of lower ones. float32 [blocks, 32]."""
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little").astype(np.float32)
    return (halves(blocks[:, 6:]) + 16 * fifth - 16) * half(blocks[:, :2])


def q8_0(blocks: np.ndarray) -> np.ndarray:
    """Q d with q in -128..127: d, then 32 bytes. float32 [blocks, 32]."""
    return blocks[:, 2:].view(np.int8) * half(blocks[:, :2])


def q4_k(blocks: np.ndarray) -> np.ndarray:
    """Q s d - t m with q in 0..15, s and t in 0..63 for every 32: d, m, 12 bytes of s and t, 128 of q.

    The first four of s and of t are the low six bits of bytes 0 to 3 and 4 to 7; the last four have their low four
    bits in bytes 8 to 11 and their high two in what is left of the bytes before. Of 32 bytes of q the low halves come
    first. float32 [blocks, 256].
    """
    s, t, u = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([s & 63, (u & 15) | (s >> 6 << 4)], axis=1)
    offsets = np.concatenate([t & 63, (u >> 4) | (t >> 6 << 4)], axis=1)
    levels = halves(blocks[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32)
    scaled = scales[..., None] * half(blocks[:, :2])[..., None]
    return levels * scaled - offsets[..., None] * half(blocks[:, 2:4])[..., None]


def q6_k(blocks: np.ndarray) -> np.ndarray:
    """(q - 32) s d with q in 0..63, s in -128..127 for every 16: 128 bytes of low halves, 64 of high bits, 16 of s, d.

    128 numbers share 64 bytes of low halves and 32 of high bits: low halves of all bytes, then their high halves; the
    bits 0 and 1 of all bytes, then 2 and 3, and so on. float32 [blocks, 256].
    """
    low = halves(blocks[:, :128].reshape(-1, 64))
    bits = blocks[:, 128:192].reshape(-1, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    levels = (low + 16 * bits.reshape(low.shape) - 32.0).reshape(-1, 16, 16)
    scales = blocks[:, 192:208].view(np.int8)[..., None] * half(blocks[:, 208:])[..., None]
    return levels * scales


def halves(packed: np.ndarray) -> np.ndarray:
    """The low four bits of all bytes, then the high four, float32 [blocks, 2 bytes]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def half(two: np.ndarray) -> np.ndarray:
    """Half precision numbers of two bytes each as float32, [blocks, 1]."""
    return np.ascontiguousarray(two).view(np.float16).astype(np.float32)


BLOCKS = {"Q4_1": (20, q4_1), "Q5_0": (22, q5_0), "Q8_0": (34, q8_0), "Q4_K": (144, q4_k), "Q6_K": (210, q6_k)}
"""Bytes of a block, and its numbers."""
