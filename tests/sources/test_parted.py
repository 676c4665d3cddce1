"""Tensors in parts, read as the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.errors import SourceError
from agentmerge.sources.parted import STEP, Box, Part, PartedWeights, parted
from agentmerge.sources.source import Extents, Stored
from agentmerge.tensors import Block, TensorSpec
from tests.files.parts import boxes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.tensors import Array


class Arrays:
    """Arrays in memory, as weights."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self.specs = {name: TensorSpec(name, "F32", array.shape) for name, array in arrays.items()}
        self.most = 0

    def read(self, block: Block, out: Array | None = None) -> Array:
        found = self._arrays[block.tensor.name].reshape(-1)[block.start : block.stop]
        self.most = max(self.most, found.size)
        if out is None:
            return found.copy()
        out[:] = found
        return out

    def extents(self, block: Block) -> Extents:
        return Extents((), verbatim=True)

    def stored(self, name: str) -> tuple[Stored, ...]:
        return (Stored("F32", self.specs[name].elements),)


def divided(whole: Array, cuts: list[int]) -> tuple[Arrays, PartedWeights]:
    spec = TensorSpec("w", "F32", whole.shape)
    found = boxes(whole.shape, cuts)
    names = {f"w {at}": whole[tuple(slice(o, o + s) for o, s in zip(at, n, strict=True))] for at, n in found}
    parts = [Part(Box(at, n), f"w {at}") for at, n in found]
    stored = Arrays({name: np.ascontiguousarray(array) for name, array in names.items()})
    return stored, PartedWeights("w", stored, {"w": parted(spec, parts[::-1], "f")})


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=0, max_size=4),
    data=st.data(),
)
def test_any_block_of_any_parts_is_that_of_the_whole(shape: list[int], data: st.DataObject) -> None:
    whole = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    _, weights = divided(whole, [data.draw(st.integers(1, n)) for n in shape])
    start = data.draw(st.integers(0, whole.size))
    stop = data.draw(st.integers(start, whole.size))
    block = Block(weights.specs["w"], start, stop)
    np.testing.assert_array_equal(weights.read(block), whole.reshape(-1)[start:stop])


def test_a_block_reads_no_more_than_it_needs_and_columns_piece_by_piece() -> None:
    whole = np.arange(4 * (STEP + 77), dtype=np.float32).reshape(4, -1)
    stored, weights = divided(whole, [2, 1])
    block = Block(weights.specs["w"], 5, 12)
    np.testing.assert_array_equal(weights.read(block), whole.reshape(-1)[5:12])
    assert stored.most == 7
    assert weights.extents(block).verbatim
    stored, weights = divided(whole.reshape(-1, 4), [1, 2])
    block = Block(weights.specs["w"], 3, whole.size - 2)
    np.testing.assert_array_equal(weights.read(block), whole.reshape(-1)[3:-2])
    assert stored.most == STEP
    assert not weights.extents(block).verbatim


WHOLE = [((0, 0), (2, 6)), ((2, 0), (2, 6))]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (WHOLE[:1], "has 12 of its 24 elements in its parts, expected all of them"),
        ([], "has 0 of its 24 elements"),
        ([*WHOLE, ((1, 0), (2, 6))], r"has two parts that overlap, at \[0, 0\] and \[1, 0\]"),
        ([((0, 0), (2, 3)), ((1, 2), (2, 3)), ((0, 0), (4, 1))], "has two parts that overlap"),
        ([((0, 0), (2, 6)), ((2, 0), (3, 6))], "inside of it"),
        ([((0,), (4,))], "inside of it"),
        ([((0, 0, 0), (4, 6))], "inside of it"),
        ([((0,), (4, 6))], "inside of it"),
    ],
)
def test_parts_that_are_not_the_whole_are_one_error(found, message: str) -> None:
    parts = [Part(Box(*box), str(i)) for i, box in enumerate(found)]
    with pytest.raises(SourceError, match=message):
        parted(TensorSpec("w", "F32", (4, 6)), parts, "f")


def test_copies_of_a_part_count_once_and_parts_without_elements_not_at_all() -> None:
    parts = [Part(Box(*box), str(i)) for i, box in enumerate([*WHOLE, WHOLE[0], ((4, 0), (0, 6))])]
    found = parted(TensorSpec("w", "F32", (4, 6)), parts, "f")
    assert [part.name for part in found.parts] == ["0", "1"]


def test_more_parts_than_can_be_compared_are_refused() -> None:
    parts = [Part(Box((i // 80, i % 80), (1, 1)), str(i)) for i in range(6400)]
    with pytest.raises(SourceError, match="has 6400 parts"):
        parted(TensorSpec("w", "F32", (80, 80)), parts, "f")
