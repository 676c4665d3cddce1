"""What an agent stores more coarsely than its base: definition and kernel, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.alike.storage import restored, rounds
from agentmerge.kernels.arguments import WIDTH
from agentmerge.sources.source import Stored
from agentmerge.survey.restored import Restored
from agentmerge.tensors import DTYPES, Array, Block, Stack, TensorSpec, as_float32
from agentmerge.testing import assert_same_bits

FLOATS = ("BF16", "F16", "F32")
SIZES = (0, 1, 2, 63, 64, 65, 2049, 70_001)
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 6e-8, 65504, 65519.9, 65520, 3.39e38, -3.4e38], "f4")


def drawn(size: int, ours: str, theirs: str) -> tuple[Array, Array]:
    """Numbers of a base, some special; those of an agent: half of them the base's, as stored there."""
    rng = np.random.default_rng(size)
    wide = np.where(rng.random(size) < 0.2, rng.choice(SPECIAL, size), rng.normal(0, 1, size)).astype(np.float32)
    with np.errstate(all="ignore"):
        base = wide.astype(DTYPES[ours])
        moved = np.where(rng.random(size) < 0.5, as_float32(base), rng.choice(SPECIAL, size) + wide)
        return base, moved.astype(np.float32).astype(DTYPES[theirs])


def run(base: Array, read: Array, stored: tuple[Stored, ...], start: int = 0) -> Array:
    spec = TensorSpec("x", "F32", (start + base.size,))
    out = np.empty(base.size + -base.size % WIDTH, np.float32)
    return restored(Block(spec, start, start + base.size), base, read, stored, out)[: base.size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("ours", "theirs"), [*itertools.product(FLOATS, repeat=2)])
def test_the_kernel_equals_the_definition(ours: str, theirs: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base, read = drawn(size, ours, theirs)
    stored = (Stored(theirs, size),)
    fast = run(base, read, stored)
    stack = Stack(Block(TensorSpec("x", ours, (size,)), 0, size), base, (fast,), ("a",), stored=(read,))
    backend = kernels.choose(stack)
    assert backend is not None
    assert Restored().kernel(stack, backend) == Restored().observe(stack)
    monkeypatch.setattr(kernels, "choose", lambda *_: None)
    assert_same_bits(run(base, read, stored), fast, f"{theirs} over {ours}")
    with np.errstate(all="ignore"):
        same = as_float32(read) == as_float32(as_float32(base).astype(DTYPES[theirs]))
    np.testing.assert_array_equal(fast, np.where(same, as_float32(base), as_float32(read)))


def test_ranges_that_are_stored_in_several_ways_are_each_restored_in_their_own() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(0, 1, 300).astype(np.float32)
    parts = [base[:100].astype(DTYPES["BF16"]), base[100:150], base[150:].astype(np.float16)]
    read = np.concatenate([as_float32(part) for part in parts])
    read[120] += 1
    expected = base.copy()
    expected[120] += 1
    stored = (Stored("BF16", 100), Stored("F32", 50), Stored("F16", 150))
    for start, stop in ((0, 300), (0, 101), (99, 151), (120, 300), (160, 170)):
        found = run(base[start:stop], read[start:stop], stored, start)
        np.testing.assert_array_equal(found, expected[start:stop])


@pytest.mark.parametrize(
    ("dtype", "stored", "expected"),
    [
        ("BF16", "BF16", False), ("BF16", "F32", False), ("BF16", "F64", False), ("BF16", "F16", True),
        ("F16", "BF16", True), ("F16", "F32", False), ("F32", "BF16", True), ("F32", "F16", True),
        ("F32", "F64", False), ("F64", "F32", True), ("F64", "F64", False),
    ],
)  # fmt: skip
def test_only_what_can_round_is_looked_at(dtype: str, stored: str, expected: bool) -> None:
    assert rounds(dtype, (Stored(stored, 5),)) is expected
    assert rounds(dtype, (Stored(dtype, 5), Stored(stored, 5))) is expected


def test_codes_with_factors_always_may() -> None:
    assert rounds("BF16", (Stored("F8_E4M3", 5, lambda low, high: np.ones(high - low, np.float32)),))


def test_a_cut_of_codes_keeps_their_own_factors() -> None:
    each = np.arange(10, dtype=np.float32)
    stored = Stored("F8_E4M3", 10, lambda low, high: each[low:high]).cut(3, 9).cut(1, 4)
    assert stored.elements == 3
    assert stored.factors is not None
    np.testing.assert_array_equal(stored.factors(0, 3), [4, 5, 6])
