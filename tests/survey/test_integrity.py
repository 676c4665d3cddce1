"""NaN and inf are counted, and the fingerprint tells every change of the bytes."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.survey.integrity import MIX, Integrity, fingerprint, fingerprint_key
from agentmerge.survey.observe import observe
from agentmerge.survey.overlap import Overlap
from agentmerge.tensors import LEAF, Block, Stack
from agentmerge.testing import random_stack

if TYPE_CHECKING:
    from agentmerge.tensors import Array


def by_hand(array: Array, key: int, start: int) -> int:
    raw = array.tobytes()
    raw += bytes(-len(raw) % 4)
    total = 0
    for i in range(len(raw) // 4):
        word = int.from_bytes(raw[4 * i : 4 * i + 4], "little")
        index = start * array.dtype.itemsize // 4 + i
        factor = ((((index + 1) * MIX) % 2**32) ^ key) | 1
        total = (total + word * factor) % 2**64
    return total


@given(
    seed=st.integers(0, 9999),
    elements=st.sampled_from([0, 1, 2, 63, 129]),
    dtypes=st.sampled_from([("BF16",), ("F16", "F32"), ("F32", "BF16"), ("F64",)]),
    start=st.sampled_from([0, LEAF, 5 * LEAF]),
)
@settings(max_examples=40, deadline=None)
def test_counts_and_fingerprints_are_what_a_loop_finds(
    seed: int, elements: int, dtypes: tuple[str, ...], start: int
) -> None:
    plain = random_stack(seed, elements=elements, dtypes=dtypes, non_finite=True)
    stack = Stack(Block(plain.block.tensor, start, start + elements), plain.base, plain.agents, plain.names)
    arrays = (stack.base, *stack.agents)
    key = fingerprint_key(stack.block.tensor.name)
    for found in (Integrity().observe(stack), observe([Integrity()], stack)[Integrity()]):
        assert found.nan.tolist() == [sum(1 for x in array if x != x) for array in arrays]
        assert found.inf.tolist() == [sum(1 for x in array if abs(x) == np.inf) for array in arrays]
        assert found.fingerprint.tolist() == [by_hand(array, key, start) for array in arrays]
    together = observe([Overlap(), Integrity()], stack)
    assert together[Integrity()] == Integrity().observe(stack)


@given(edges=st.lists(st.integers(0, 4), max_size=4), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_any_division_gives_the_same(edges: list[int], seed: int) -> None:
    stack = random_stack(seed, elements=4 * LEAF + 17, dtypes=("BF16", "F32"), non_finite=True)
    whole = Integrity().observe(stack)
    ends = sorted({0, stack.base.size, *(edge * LEAF for edge in edges)})
    total = None
    for a, b in reversed(list(itertools.pairwise(ends))):
        agents = tuple(agent[a:b] for agent in stack.agents)
        found = Integrity().observe(Stack(Block(stack.block.tensor, a, b), stack.base[a:b], agents, stack.names))
        total = found if total is None else Integrity().answers.combine(total, found)
    assert total == whole


@given(seed=st.integers(0, 999), place=st.integers(0, 399), flip=st.integers(1, 255))
@settings(max_examples=50, deadline=None)
def test_no_change_of_a_single_byte_goes_unseen(seed: int, place: int, flip: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, 400, dtype=np.uint8)
    changed = array.copy()
    changed[place] ^= flip
    key = fingerprint_key("w")
    assert fingerprint(array.view("<u4"), key, 0) != fingerprint(changed.view("<u4"), key, 0)


def test_two_words_that_change_places_are_seen() -> None:
    key = fingerprint_key("w")
    assert fingerprint(np.array([1, 2], "<u4"), key, 0) != fingerprint(np.array([2, 1], "<u4"), key, 0)


def test_the_name_of_the_tensor_is_part_of_the_fingerprint() -> None:
    array = np.arange(9, dtype=np.float32)
    assert fingerprint(array, fingerprint_key("w"), 0) != fingerprint(array, fingerprint_key("v"), 0)


def test_answers_survive_json_to_the_last_bit() -> None:
    answer = Integrity().observe(random_stack(1, non_finite=True))
    assert Integrity().answers.decode(json.loads(json.dumps(Integrity().answers.encode(answer)))) == answer
    assert answer.fingerprint.dtype == np.uint64


def test_answers_with_the_smallest_difference_are_not_equal() -> None:
    answer = Integrity().observe(random_stack(1))
    other = Integrity().answers.decode(Integrity().answers.encode(answer))
    other.fingerprint[1] += np.uint64(1)
    assert answer != other


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_signalling_nans_are_counted_without_a_warning(dtype: str) -> None:
    stack = random_stack(0, elements=64, dtypes=(dtype,))
    bits = {"BF16": 0x7F81, "F16": 0x7C01, "F32": 0x7F800001}[dtype]
    unsigned = f"u{stack.base.dtype.itemsize}"
    base = np.full(64, bits, unsigned).view(stack.base.dtype)
    stack = Stack(stack.block, base, stack.agents, stack.names)
    assert observe([Integrity()], stack)[Integrity()].nan.tolist() == [64, 0, 0, 0]
    with np.errstate(all="ignore"):
        assert Integrity().observe(stack).nan.tolist() == [64, 0, 0, 0]
