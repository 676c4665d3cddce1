"""The compiled kernels equal their numpy definitions bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.kernels import Kernel, choose, cpu
from agentmerge.kernels.arguments import WIDTH
from agentmerge.kernels.formulas import Ram as Settings
from agentmerge.methods.ram import Ram
from agentmerge.randomness import random_bits
from agentmerge.survey.integrity import Integrity, IntegrityCounts, fingerprint_key
from agentmerge.survey.overlap import Overlap, OverlapCounts
from agentmerge.survey.rounding import RoundingCounts, observe_rounding
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import DTYPES, Block, Cast, Stack, TensorSpec, as_float32, stochastic_round

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array, Rounding

FLOATS = ("BF16", "F16", "F32")
SIZES = (0, 1, 2, 63, 64, 65, 2047, 2048, 2049, 4097)
BITS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}


@dataclass(frozen=True)
class Case:
    """One stack and the settings of a merge."""

    stack: Stack
    threshold: float
    scale: Array
    weight: Array


def _values(random: np.random.Generator, n: int, dtype: str, kind: str) -> Array:
    """Numbers like weights, or any bit pattern at all, or weights among zeros, denormals, huge numbers, NaN, inf."""
    if kind == "bits":
        return random.integers(0, np.iinfo(BITS[dtype]).max, n, BITS[dtype], endpoint=True).view(DTYPES[dtype])
    values = random.standard_normal(n).astype(np.float32) * np.float32(0.02)
    if kind == "special":
        special = np.array(
            [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -3e-40, 6e-8, 3e-5, 65504, 65519, 65520, 3.3e38, -3.4e38, 1],
            np.float32,
        )
        values = np.where(random.random(n) < 0.4, random.choice(special, n), values)
    with np.errstate(all="ignore"):
        return values.astype(DTYPES[dtype])


def _agent(random: np.random.Generator, base: Array, dtype: str, kind: str, density: float) -> Array:
    """The base with some elements moved a little, some anywhere."""
    values = as_float32(base).copy()
    n = values.size
    with np.errstate(all="ignore"):
        near = values * (1 + random.standard_normal(n).astype(np.float32) * np.float32(0.01))
        moved = np.where(random.random(n) < density, near, values)
        elsewhere = as_float32(_values(random, n, dtype, kind))
        return np.where(random.random(n) < 0.1, elsewhere, moved).astype(DTYPES[dtype])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, kind = draw(st.sampled_from(SIZES)), draw(st.sampled_from(["weights", "special", "bits"]))
    agents = draw(st.integers(1, 9))
    dtypes = draw(st.one_of(st.sampled_from(FLOATS).map(lambda d: [d] * (agents + 1)), _mix(agents + 1)))
    base = _values(random, n, dtypes[0], kind)
    density = draw(st.sampled_from([0.0, 0.03, 0.5, 1.0]))
    values = tuple(_agent(random, base, dtype, kind, density) for dtype in dtypes[1:])
    start = 2048 * draw(st.sampled_from([0, 1, 3, 2**20 + 1, 2**31 + 7]))
    ones = np.ones(agents, np.float32)
    return Case(
        _stack(base, values, start),
        draw(st.sampled_from([0.0, 1e-5, 1e-3, 1e30])),
        draw(
            st.sampled_from([ones, 1 + random.random(agents).astype(np.float32), ones + (random.random(agents) < 0.5)])
        ),
        draw(st.sampled_from([ones, random.standard_normal(agents).astype(np.float32), ones * 0, -ones])),
    )


def _mix(n: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(FLOATS), min_size=n, max_size=n)


def _stack(base: Array, agents: tuple[Array, ...], start: int = 0) -> Stack:
    dtype = next(name for name in FLOATS if DTYPES[name] == base.dtype)
    block = Block(TensorSpec("model.norm.weight", dtype, (start + base.size,)), start, start + base.size)
    return Stack(block, base, agents, tuple(f"agent{t}" for t in range(len(agents))))


def _counted(stack: Stack, threshold: float) -> tuple[OverlapCounts, IntegrityCounts]:
    key = fingerprint_key(stack.block.tensor.name)
    exactly, different, *integrity = cpu.count(stack, threshold, key)
    return OverlapCounts(stack.base.size, exactly, different), IntegrityCounts(*integrity)


class _Scaled(Ram):
    """Ram with given scales and weights."""

    given_scale: tuple[float, ...]
    name: str = "ram"  # type: ignore[assignment]

    def _scales_at(self, stack: Stack, survey: Survey) -> Array:
        return np.array(self.given_scale, np.float32)


def _defined(case: Case, cast: Cast) -> tuple[Array, RoundingCounts]:
    stack = case.stack
    weighted = Stack(stack.block, stack.base, stack.agents, stack.names, tuple(map(float, case.weight)))
    method = _Scaled(given_scale=tuple(map(float, case.scale)), threshold=case.threshold)
    with np.errstate(all="ignore"):
        merged = method.merge(weighted, Survey())
        stored = cast.apply(merged, stack.block.tensor.name, stack.block.start)
        return stored, observe_rounding(weighted, merged, stored, cast, case.threshold)


def _merged(case: Case, cast: Cast) -> tuple[Array, RoundingCounts]:
    stack = case.stack
    out = np.full(stack.base.size, 7, DTYPES[cast.dtype])
    kernel = Kernel("ram", Settings(case.threshold, case.scale, case.weight), stack)
    return out, RoundingCounts(*cpu.merge(kernel, cast, out))


def _same_bits(left: Array, right: Array) -> bool:
    """Equal bits; of NaN only the places."""
    bits = {2: np.uint16, 4: np.uint32}[left.itemsize]
    nan = np.isnan(as_float32(left))
    return (
        left.dtype == right.dtype
        and np.array_equal(nan, np.isnan(as_float32(right)))
        and np.array_equal(left.view(bits)[~nan], right.view(bits)[~nan])
    )


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    cpu.load("count", "ram")


@settings(max_examples=250, deadline=None)
@given(cases())
def test_count_equals_overlap_and_integrity(case: Case) -> None:
    with np.errstate(all="ignore"):
        expected = Overlap(case.threshold).observe(case.stack), Integrity().observe(case.stack)
    assert _counted(case.stack, case.threshold) == expected


@settings(max_examples=100, deadline=None)
@given(cases())
def test_integrity_alone_equals_its_definition(case: Case) -> None:
    stack, key = case.stack, fingerprint_key(case.stack.block.tensor.name)
    answer = cpu.integrity(stack, key)
    assert IntegrityCounts(*answer) == Integrity().observe(stack)


@settings(max_examples=500, deadline=None)
@given(cases(), st.sampled_from(FLOATS), st.sampled_from(["nearest", "stochastic"]))
def test_ram_equals_merge_then_cast_then_observe_rounding(case: Case, dtype: str, rounding: Rounding) -> None:
    cast = Cast(dtype, rounding, seed=3)
    out, tally = _merged(case, cast)
    expected, expected_tally = _defined(case, cast)
    assert _same_bits(out, expected)
    assert tally == expected_tally
    assert all(isinstance(value, int) for value in (tally.overflow, tally.non_finite))


@pytest.mark.parametrize("agents", [1, 17, 64])
def test_up_to_64_agents_are_counted_and_merged(agents: int) -> None:
    random = np.random.default_rng(agents)
    base = _values(random, 257, "BF16", "weights")
    stack = _stack(base, tuple(_agent(random, base, "BF16", "weights", 0.3) for _ in range(agents)))
    case = Case(stack, 1e-5, np.full(agents, 1.25, np.float32), np.ones(agents, np.float32))
    assert _counted(stack, 1e-5) == (Overlap().observe(stack), Integrity().observe(stack))
    out, tally = _merged(case, Cast("BF16"))
    expected, expected_tally = _defined(case, Cast("BF16"))
    assert _same_bits(out, expected)
    assert tally == expected_tally


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_kind_of_float32_is_rounded_as_the_cast_does(dtype: str, rounding: Rounding) -> None:
    patterns = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    case = Case(_stack(patterns, (patterns,)), 1e-5, np.ones(1, np.float32), np.ones(1, np.float32))
    cast = Cast(dtype, rounding)
    out, _ = _merged(case, cast)
    with np.errstate(all="ignore"):
        assert _same_bits(out, cast.apply(patterns, case.stack.block.tensor.name, 0))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_a_zero_draw_rounds_the_smallest_denormal_up(dtype: str) -> None:
    tiny = np.full(2**16, 1e-45, np.float32)
    stack, cast = _stack(tiny, (tiny,)), Cast(dtype, "stochastic", seed=1)
    bits = random_bits(cast.key(stack.block.tensor.name), 0, tiny.size)
    expected = stochastic_round(tiny, dtype, bits)
    out = np.empty(tiny.size, DTYPES[dtype])
    ones = np.ones(1, np.float32)
    cpu.merge(Kernel("ram", Settings(0.0, ones, ones), stack), cast, out)
    assert _same_bits(out, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_stored_number_survives_an_unchanged_merge(dtype: str) -> None:
    every = np.arange(2**16, dtype=np.uint32)
    stored = (every * 65537 if dtype == "F32" else every).astype(BITS[dtype]).view(DTYPES[dtype])
    case = Case(_stack(stored, (stored, stored)), 0.0, np.ones(2, np.float32), np.ones(2, np.float32))
    out, tally = _merged(case, Cast(dtype))
    assert _same_bits(out, stored)
    assert tally.changed.tolist() == [0, 0]


def test_inputs_are_not_mutated() -> None:
    random = np.random.default_rng(1)
    base = _values(random, 4097, "BF16", "special")
    stack = _stack(base, tuple(_agent(random, base, d, "special", 0.5) for d in FLOATS))
    before = [array.tobytes() for array in (stack.base, *stack.agents)]
    _counted(stack, 1e-5)
    _merged(Case(stack, 1e-5, np.full(3, 1.1, np.float32), np.ones(3, np.float32)), Cast("F16", "stochastic"))
    assert [array.tobytes() for array in (stack.base, *stack.agents)] == before


def test_nothing_is_written_beyond_the_output() -> None:
    random = np.random.default_rng(2)
    base = _values(random, 2049, "BF16", "weights")
    room = np.full(2049 + 200, 7, DTYPES["BF16"])
    ones = np.ones(1, np.float32)
    cpu.merge(Kernel("ram", Settings(0.0, ones, ones), _stack(base, (base,))), Cast("BF16"), room[100:-100])
    assert (room[:100] == 7).all()
    assert (room[-100:] == 7).all()


def test_a_stack_in_blocks_gives_the_same_as_whole() -> None:
    random = np.random.default_rng(3)
    base = _values(random, 6149, "BF16", "weights")
    stack = _stack(base, tuple(_agent(random, base, d, "weights", 0.5) for d in FLOATS), 4096)
    case = Case(stack, 1e-5, np.full(3, 1.1, np.float32), np.ones(3, np.float32))
    cast = Cast("BF16", "stochastic")
    whole, tally = _merged(case, cast)
    parts = []
    for first in (0, 2048, 4096):
        cut = slice(first, first + 2048 if first < 4096 else None)
        part = _stack(base[cut], tuple(agent[cut] for agent in stack.agents), 4096 + first)
        parts.append(_merged(Case(part, 1e-5, case.scale, case.weight), cast))
    assert _same_bits(np.concatenate([out for out, _ in parts]), whole)
    summed = [sum(getattr(counts, name) for _, counts in parts) for name in RoundingCounts.__slots__]
    assert RoundingCounts(*summed) == tally


def test_unaligned_arrays_give_the_same() -> None:
    random = np.random.default_rng(4)
    base = _values(random, 4097, "F32", "weights")
    agent = _agent(random, base, "BF16", "weights", 0.5)

    def moved(array: Array) -> Array:
        raw = np.empty(array.nbytes + 1, np.uint8)
        raw[1:] = array.view(np.uint8)
        return raw[1:].view(array.dtype)

    assert _counted(_stack(moved(base), (moved(agent),)), 1e-5) == _counted(_stack(base, (agent,)), 1e-5)


def test_two_threads_give_the_same_as_one() -> None:
    random = np.random.default_rng(5)
    base = _values(random, 2**18 + 5, "BF16", "weights")
    stack = _stack(base, tuple(_agent(random, base, "BF16", "weights", 0.5) for _ in range(3)))
    case = Case(stack, 1e-5, np.full(3, 1.1, np.float32), np.ones(3, np.float32))
    alone = _merged(case, Cast("BF16", "stochastic"))
    counted = _counted(stack, 1e-5)
    with ThreadPoolExecutor(2) as pool:
        merges = list(pool.map(lambda _: _merged(case, Cast("BF16", "stochastic")), range(8)))
        counts = list(pool.map(lambda _: _counted(stack, 1e-5), range(8)))
    assert all(_same_bits(out, alone[0]) and tally == alone[1] for out, tally in merges)
    assert all(count == counted for count in counts)


def test_only_three_dtypes_and_1_to_64_agents_are_taken() -> None:
    half, double = np.ones(4, np.float16), np.ones(4, np.float64)

    def taken(base: Array, agents: tuple[Array, ...], *dtypes: str, **extra: tuple[Array, ...]) -> bool:
        block = Block(TensorSpec("w", "F16", (4,)), 0, 4)
        return choose(Stack(block, base, agents, (), extra=extra), *dtypes) is not None

    assert taken(half, (half, half.astype(np.float32)), "BF16")
    assert taken(half, (half,) * 64)
    assert not taken(half, (half,) * 65)
    assert not taken(half, ())
    assert not taken(double, (half,))
    assert not taken(half, (double,))
    assert not taken(half, (half,), "F64")
    assert not taken(half, (half,), importance=(double,))
    assert not taken(np.ones(8, np.float16)[::2], (half,))


def test_arrays_of_other_sizes_strides_or_dtypes_are_refused() -> None:
    base, ones = np.ones(128, np.float32), np.ones(1, np.float32)
    with pytest.raises(ValueError, match=r"found float32 \[127\].*expected contiguous"):
        cpu.count(_stack(base, (base[1:],)), 1e-5, 0)
    with pytest.raises(ValueError, match="strides"):
        cpu.integrity(_stack(base[::2], (base[::2],)), 0)
    with pytest.raises(ValueError, match="float64"):
        cpu.merge(Kernel("ram", Settings(0.0, ones, ones), _stack(base, (base,))), Cast("F64"), np.empty(128))


def test_the_lanes_of_a_vector_divide_what_arrays_are_padded_to() -> None:
    from agentmerge.kernels.cpu.loops import vectors

    assert WIDTH % vectors.LANES == 0


def _run(program: str, **environment: str) -> str:
    command = [sys.executable, "-c", program]
    plain = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    result = subprocess.run(command, env={**plain, **environment}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_the_method_does_not_import_numba() -> None:
    assert _run("import sys, agentmerge.methods.ram; print('numba' in sys.modules)").strip() == "False"


@pytest.mark.slow
def test_the_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    program = (
        "import numba.core.caching as c; c.CacheImpl._locator_classes = [c.UserProvidedCacheLocator]\n"
        "from agentmerge.kernels.cpu.loops.restore import restore\n"
        "print(restore.load().stats.cache_path)"
    )
    assert _run(program).strip() == "None"
    assert _run("from agentmerge.kernels import cpu; cpu.load('restore')", NUMBA_CACHE_DIR=str(blocked / "x")) == ""


@pytest.mark.slow
def test_a_second_process_loads_every_loop_from_the_cache(tmp_path: Path) -> None:
    """The template's copies too: two formulas, and the loop that reads, whose file lies elsewhere."""
    program = (
        "from agentmerge.files import pread\n"
        "from agentmerge.kernels.cpu.loops import restore\n"
        "from agentmerge.kernels.cpu.loops.formulas import fisher, given\n"
        "loops = [pread.read, restore.restore, fisher.merge, given.merge]\n"
        "print(*(sum(loop.load().stats.cache_hits.values()) for loop in loops))"
    )
    assert _run(program, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["0"] * 4
    assert _run(program, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["1"] * 4


def test_where_numba_may_not_compile_the_definitions_run() -> None:
    program = (
        "from agentmerge.kernels import choose\n"
        "from agentmerge.testing import random_stack\n"
        "from agentmerge.files.reading import supported\n"
        "print(choose(random_stack(0)), supported())"
    )
    assert _run(program, NUMBA_DISABLE_JIT="1").strip() == "None False"
