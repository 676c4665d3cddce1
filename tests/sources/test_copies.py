"""A tensor in two shards: one where both hold the same bytes, no checkpoint where they do not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentmerge.sources.copies import pieces
from agentmerge.sources.together import read_blocks
from agentmerge.tensors import Block, TensorSpec
from tests.sources.test_folder import (
    EMBED,
    HEAD,
    NORM,
    ONE,
    TWO,
    open_source,
    refusal,
    refused,
    save,
    sharded,
    whole,
    write_index,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.tensors import Array


def test_of_a_tensor_in_two_shards_equal_copies_are_one(tmp_path: Path) -> None:
    none = np.empty((0, 4), np.float32)
    save(sharded(tmp_path) / ONE, embed=EMBED, head=HEAD, none=none)
    save(tmp_path / TWO, norm=NORM, head=HEAD, none=none)
    write_index(tmp_path, {"embed": ONE, "head": TWO, "norm": TWO, "none": TWO})
    with open_source(tmp_path) as source:
        assert whole(source, "head").tobytes() == HEAD.tobytes()
        assert whole(source, "none").shape == (0, 4)
        extents = source.weights.extents(Block(source.specs["head"], 0, 10))
        assert (len(extents.parts), extents.verbatim) == (2, False), "both are read"
        assert len(source.notes) == 1
        assert re.search(f"{ONE}: the index takes them from another.*: (head, none|none, head)$", str(source.notes[0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, bool])
def test_a_tensor_in_two_shards_with_other_numbers_is_refused_when_it_is_opened(tmp_path: Path, dtype: Any) -> None:
    copies = np.zeros((2, 3, 5), dtype)
    copies[1, 2, 1] = 1
    save(sharded(tmp_path) / ONE, embed=EMBED, head=copies[0])
    save(tmp_path / TWO, norm=NORM, head=copies[1])
    with refusal(TWO, "tensor 'head' is also in " + ONE, "at element 11 of 15", "the index takes it from " + TWO):
        refused(tmp_path)


def test_not_a_number_equals_itself_in_two_shards_and_minus_zero_is_not_zero(tmp_path: Path) -> None:
    save(sharded(tmp_path) / ONE, embed=EMBED, head=np.array([np.nan, np.inf], np.float16))
    save(tmp_path / TWO, norm=NORM, head=np.array([np.nan, np.inf], np.float16))
    with open_source(tmp_path) as source:
        assert np.isnan(whole(source, "head")[0])
    save(tmp_path / ONE, embed=EMBED, head=np.array([0.0], np.float16))
    save(tmp_path / TWO, norm=NORM, head=np.array([-0.0], np.float16))
    with refusal("tensor 'head' is also in"):
        refused(tmp_path)


def test_what_the_pieces_leave_out_is_compared_as_it_is_read(tmp_path: Path) -> None:
    """Of a million numbers one differs, where none was looked at when the checkpoint was opened."""
    long, other = np.zeros(1_000_003, np.int8), np.zeros(1_000_003, np.int8)
    other[5000] = 1
    save(sharded(tmp_path) / ONE, embed=EMBED, head=other)
    save(tmp_path / TWO, norm=NORM, head=long)
    with open_source(tmp_path) as source:
        source.weights.read(Block(source.specs["head"], 0, 5000))
        out = np.empty(7, np.int8)
        with refusal(f"{TWO}: tensor 'head' is also in {ONE}, with another number at element 5,000 of 1,000,003"):
            read_blocks([(source.weights, Block(source.specs["head"], 4998, 5005))], [out])


@pytest.mark.parametrize(
    ("other", "said"), [(HEAD.T.copy(), "as F16 [2, 5], not F16 [5, 2]"), (HEAD.astype(np.float32), "as F32 [5, 2]")]
)
def test_a_tensor_in_two_shards_has_one_form(tmp_path: Path, other: Array, said: str) -> None:
    save(sharded(tmp_path) / ONE, embed=EMBED, head=other)
    with refusal(TWO, "tensor 'head' is also in " + ONE, said):
        refused(tmp_path)


@given(st.integers(0, 200_000))
@example(0)
@example(4096)
@example(4097)
def test_pieces_lie_within_a_tensor_and_reach_its_ends(elements: int) -> None:
    found = list(pieces(TensorSpec("a", "I8", (elements,))))
    assert (found[0].start, found[-1].stop) == (0, elements)
    assert len({block.start for block in found}) == len(found) <= 16
    assert all(0 <= block.start <= block.stop <= elements and block.elements <= 4096 for block in found)
