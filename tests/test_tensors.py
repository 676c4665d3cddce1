"""Casts round once, to a neighbour, without bias; specs, blocks and stacks know their sizes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.tensors import DTYPES, Block, Cast, Stack, TensorSpec, as_float32, float32_bits, stochastic_round
from agentmerge.testing import assert_same_bits, random_stack

if TYPE_CHECKING:
    from agentmerge.tensors import Array

NARROW = ("BF16", "F16")
SMALLEST = {"BF16": 2.0**-133, "F16": 2.0**-24}  # subnormal
LARGEST = {"BF16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), "F16": 65504.0}
TIES = {"BF16": [1 + 2**-8, 1 + 3 * 2**-8, 2.0**-134, 3 * 2.0**-134], "F16": [1 + 2**-11, 1 + 3 * 2**-11, 2.0**-25]}


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def neighbours(values: Array, dtype: str) -> tuple[Array, Array]:
    """The largest number of the dtype below or at each value, and the smallest above or at it, as float64."""
    grid = np.sort(np.unique(every_number(dtype)))
    low = grid[np.searchsorted(grid, values.astype(np.float64), side="right") - 1]
    high = grid[np.minimum(np.searchsorted(grid, values.astype(np.float64), side="left"), grid.size - 1)]
    return low, high


def every_number(dtype: str) -> Array:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return numbers[np.isfinite(numbers)].astype(np.float64)


# nearest


@pytest.mark.parametrize("dtype", NARROW)
def test_nearest_takes_ties_to_even(dtype: str) -> None:
    stored = Cast(dtype).apply(floats(*TIES[dtype]), "w", 0)
    bits = stored.view(np.uint16)
    assert (bits % 2 == 0).all()


@pytest.mark.parametrize("dtype", NARROW)
@given(seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_nearest_is_the_nearest(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(200) * 10.0 ** rng.integers(-8, 3, 200)).astype(np.float32)
    low, high = neighbours(values, dtype)
    stored = Cast(dtype).apply(values, "w", 0).astype(np.float64)
    wide = values.astype(np.float64)
    np.testing.assert_array_equal(np.abs(stored - wide), np.minimum(wide - low, high - wide))


def test_to_float32_nothing_moves() -> None:
    values = random_stack(0, dtypes=("F32",), huge=True, non_finite=True).base
    for rounding in ("nearest", "stochastic"):
        assert_same_bits(Cast("F32", rounding).apply(values, "w", 0), values, rounding)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", NARROW)
def test_beyond_the_largest_number_is_inf(dtype: str) -> None:
    values = floats(3.4028235e38, -3.4028235e38, np.inf)
    stored = as_float32(Cast(dtype).apply(values, "w", 0))
    np.testing.assert_array_equal(stored, [np.inf, -np.inf, np.inf])


# stochastic


@pytest.mark.parametrize("dtype", NARROW)
def test_stochastic_never_moves_a_number_that_can_be_stored(dtype: str) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])
    for bits in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
        found = stochastic_round(as_float32(numbers), dtype, np.full(1 << 16, bits, np.uint32))
        assert_same_bits(found, numbers, f"{dtype} with bits {bits:x}")


@pytest.mark.parametrize("dtype", NARROW)
@given(seed=st.integers(0, 1000), exponent=st.integers(-44, 4))
@settings(max_examples=40, deadline=None)
def test_stochastic_takes_one_of_the_two_neighbours(dtype: str, seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(100) * 10.0**exponent).astype(np.float32)
    low, high = neighbours(values, dtype)
    found = Cast(dtype, "stochastic", seed).apply(values, "w", 0).astype(np.float64)
    assert ((found == low) | (found == high)).all()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("BF16", 1 + 2.0**-9),
        ("BF16", -0.0123),
        ("BF16", 2.0**-126 * (1 + 2.0**-8)),
        ("BF16", 2.0**-130 * 1.03),  # between subnormals
        ("BF16", -(2.0**-135)),  # below the smallest one
        ("F16", 1 + 2.0**-12),
        ("F16", -3.14159),
        ("F16", 2.0**-20 * 1.01),  # between subnormals
        ("F16", 2.0**-26),
        ("F16", 6.1e-5),
    ],
)
def test_stochastic_is_unbiased(dtype: str, value: float) -> None:
    n = 1 << 18
    values = np.full(n, value, np.float32)
    low, high = (float(side[0]) for side in neighbours(values[:1], dtype))
    found = Cast(dtype, "stochastic", 3).apply(values, "w", 0).astype(np.float64)
    share = (float(values[0]) - low) / (high - low)
    assert 0 < share < 1
    ups = float((found == high).mean())
    assert abs(ups - share) < 5 * np.sqrt(share * (1 - share) / n)
    assert set(np.unique(found)) == {low, high}


@pytest.mark.parametrize("dtype", NARROW)
def test_the_bits_decide_exactly_at_the_fraction(dtype: str) -> None:
    """A quarter of the way up: up for bits below 2^30, down from there on."""
    step = 2.0 ** (-7 if dtype == "BF16" else -10)
    values = np.full(2, 1 + step / 4, np.float32)
    found = stochastic_round(values, dtype, np.array([2**30 - 1, 2**30], np.uint32)).astype(np.float64)
    np.testing.assert_array_equal(found, [1 + step, 1])


@pytest.mark.parametrize("dtype", NARROW)
def test_stochastic_keeps_signs_of_zero_nan_and_inf(dtype: str) -> None:
    values = floats(0.0, -0.0, np.nan, np.inf, -np.inf)
    found = as_float32(Cast(dtype, "stochastic").apply(values, "w", 0))
    assert_same_bits(found, values, dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_between_the_largest_number_and_the_next_step_stochastic_may_reach_inf(dtype: str) -> None:
    step = 2.0 ** (120 if dtype == "BF16" else 5)
    values = np.full(4000, LARGEST[dtype] + step / 2, np.float32)
    found = Cast(dtype, "stochastic").apply(values, "w", 0).astype(np.float64)
    assert set(np.unique(found)) == {LARGEST[dtype], np.inf}
    beyond = Cast(dtype, "stochastic").apply(floats(3.4028235e38), "w", 0)
    assert np.isinf(beyond.astype(np.float64)) or dtype == "BF16"


@given(edges=st.lists(st.integers(0, 500), max_size=6), dtype=st.sampled_from(NARROW))
@settings(max_examples=30, deadline=None)
def test_any_division_into_blocks_draws_the_same(edges: list[int], dtype: str) -> None:
    values = (0.02 * np.random.default_rng(5).standard_normal(500)).astype(np.float32)
    cast = Cast(dtype, "stochastic", 11)
    whole = cast.apply(values, "w", 0)
    ends = sorted({0, 500, *edges})
    parts = [cast.apply(values[a:b], "w", a) for a, b in itertools.pairwise(ends)]
    assert_same_bits(np.concatenate(parts), whole, "parts")


def test_seed_and_tensor_name_change_the_draws() -> None:
    values = (0.02 * np.random.default_rng(5).standard_normal(500)).astype(np.float32)
    found = {Cast("BF16", "stochastic", s).apply(values, n, 0).tobytes() for s, n in ((0, "w"), (1, "w"), (0, "v"))}
    assert len(found) == 3


# nouns


def test_sizes_of_specs_and_blocks() -> None:
    spec = TensorSpec("w", "BF16", (3, 5))
    assert (spec.elements, spec.nbytes) == (15, 30)
    assert TensorSpec("s", "F32", ()).elements == 1
    assert TensorSpec("n", "F32", (0, 7)).nbytes == 0
    assert Block(spec, 4, 9).elements == 5


@pytest.mark.parametrize("dtypes", [("BF16",), ("F32", "BF16", "F16"), ("F16", "F32")])
def test_task_vectors_are_float32_differences(dtypes: tuple[str, ...]) -> None:
    stack: Stack = random_stack(2, dtypes=dtypes, elements=300)
    tau: Any = stack.task_vectors()
    assert tau.dtype == np.float32
    assert tau.shape == (3, 300)
    for t, agent in enumerate(stack.agents):
        for i in range(0, 300, 37):
            assert tau[t, i] == np.float32(agent[i]) - np.float32(stack.base[i])


def test_task_vectors_of_hostile_numbers_raise_no_warning() -> None:
    random_stack(0, huge=True, non_finite=True, dtypes=("F32",)).task_vectors()


def test_the_float32_bits_of_two_byte_numbers_are_their_own_on_every_processor() -> None:
    """All 65,536 of each dtype, signalling NaN too: who differs from whom must not hang on the processor."""
    every = np.arange(2**16, dtype=np.uint16)
    assert (float32_bits(every.view(DTYPES["BF16"])) == every.astype(np.uint32) << 16).all()
    half = float32_bits(every.view(np.float16))
    assert np.unique(half).size == 2**16
    nan = (every & 0x7C00 == 0x7C00) & (every & 0x3FF != 0)
    assert (half[~nan] == every.view(np.float16)[~nan].astype(np.float32).view(np.uint32)).all()
    assert (half[nan] & 0x7FFFFF == (every[nan] & 0x3FF).astype(np.uint32) << 13).all()
