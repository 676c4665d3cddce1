"""A view tells where a block's bytes lie, and whether they are what `read` gives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.alike.numbers import Fp8View
from agentmerge.alike.view import FlatRange, RangeView
from agentmerge.sources.opening import opened
from agentmerge.sources.together import read_blocks
from agentmerge.tensors import DTYPES, Block, TensorSpec
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.files.reading import Extent

TENSORS = {name: np.arange(i, i + 30, dtype=np.float32) for i, name in enumerate("abc")}
SPECS = {
    "a": TensorSpec("a", "F32", (30,)),
    "renamed": TensorSpec("renamed", "F32", (30,)),
    "stacked": TensorSpec("stacked", "F32", (2, 30)),
    "interleaved": TensorSpec("interleaved", "F32", (60,)),
    "extended": TensorSpec("extended", "F32", (40,)),
    "widened": TensorSpec("widened", "F64", (30,)),
}


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(None, str(write_checkpoint(tmp_path_factory.mktemp("stored"), TENSORS))) as source:
        stored = source.weights
        b, c = FlatRange.all_of(stored, "b"), FlatRange.all_of(stored, "c")
        ranges = {
            "renamed": (b,),
            "stacked": (b, c),
            "interleaved": tuple(FlatRange(stored, name, at, 5) for at in range(0, 30, 5) for name in "bc"),
            "extended": (c, FlatRange(None, "", 0, 10)),
            "widened": (c,),
        }
        yield RangeView(stored, SPECS, ranges)


def bytes_of(parts: tuple[Extent, ...]) -> bytes:
    found = []
    for part in parts:
        with part.file.borrow() as fd:
            found.append(os.pread(fd, part.nbytes, part.offset))
    return b"".join(found)


@settings(deadline=None)
@given(st.sampled_from(sorted(SPECS)), st.data())
def test_verbatim_extents_are_what_read_gives(view: Any, name: str, data: st.DataObject) -> None:
    spec = SPECS[name]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, spec.elements)] * 2)))
    block = Block(spec, start, stop)
    extents = view.extents(block)
    if extents.verbatim:
        assert bytes_of(extents.parts) == view.read(block).tobytes()
    together = np.zeros(block.elements, DTYPES[spec.dtype])
    read_blocks([(view, block)], [together], ahead=[(view, block)])
    assert together.tobytes() == view.read(block).tobytes()


@pytest.mark.parametrize(
    ("name", "start", "stop", "parts", "verbatim"),
    [
        ("a", 0, 30, 1, True),
        ("renamed", 3, 9, 1, True),
        ("stacked", 0, 30, 1, True),
        ("stacked", 31, 60, 1, True),
        ("stacked", 29, 31, 2, True),
        ("interleaved", 0, 60, 12, True),
        ("extended", 0, 30, 1, True),
        ("extended", 29, 31, 1, False),
        ("extended", 30, 40, 0, False),
        ("widened", 0, 30, 1, False),
    ],
)
def test_extents_are_verbatim_where_files_hold_the_bytes(
    view: Any, name: str, start: int, stop: int, parts: int, verbatim: bool
) -> None:
    extents = view.extents(Block(SPECS[name], start, stop))
    assert (len(extents.parts), extents.verbatim) == (parts, verbatim)


def test_dequantised_numbers_are_not_verbatim_but_the_others_are(view: Any) -> None:
    mixed = Fp8View(view, {**SPECS, "renamed": TensorSpec("renamed", "BF16", (30,))}, {"renamed": "a"}, {})
    scaled = mixed.extents(Block(mixed.specs["renamed"], 0, 30))
    assert (len(scaled.parts), scaled.verbatim) == (1, False)
    assert mixed.extents(Block(SPECS["a"], 0, 30)).verbatim
