"""A view gives the span of a block just where its bytes lie in one file as `read` gives them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.alike.numbers import Dequantised
from agentmerge.alike.view import Composed, Piece, whole
from agentmerge.sources.folder import open_checkpoint
from agentmerge.tensors import Block, TensorSpec
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

TENSORS = {name: np.arange(i, i + 30, dtype=np.float32) for i, name in enumerate("abc")}
SPECS = {
    "a": TensorSpec("a", "F32", (30,)),
    "renamed": TensorSpec("renamed", "F32", (30,)),
    "stacked": TensorSpec("stacked", "F32", (2, 30)),
    "extended": TensorSpec("extended", "F32", (40,)),
    "widened": TensorSpec("widened", "F64", (30,)),
}


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_checkpoint(write_checkpoint(tmp_path_factory.mktemp("stored"), TENSORS)) as stored:
        pieces = {
            "renamed": whole(stored, "b"),
            "stacked": whole(stored, "b") + whole(stored, "c"),
            "extended": (*whole(stored, "c"), Piece(None, "", 0, 10)),
            "widened": whole(stored, "c"),
        }
        yield Composed(stored, SPECS, pieces)


@settings(deadline=None)
@given(st.sampled_from(sorted(SPECS)), st.data())
def test_a_span_holds_what_read_gives(view: Any, name: str, data: st.DataObject) -> None:
    spec = SPECS[name]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, spec.elements)] * 2)))
    block = Block(spec, start, stop)
    span = view.span(block)
    if span is not None:
        assert os.pread(span.fd, span.nbytes, span.offset) == view.read(block).tobytes()
        span.close()


@pytest.mark.parametrize(
    ("name", "start", "stop", "there"),
    [
        ("a", 0, 30, True),
        ("renamed", 3, 9, True),
        ("stacked", 0, 30, True),
        ("stacked", 31, 60, True),
        ("stacked", 29, 31, False),
        ("extended", 0, 30, True),
        ("extended", 29, 31, False),
        ("extended", 30, 40, False),
        ("widened", 0, 30, False),
    ],
)
def test_there_is_a_span_where_one_file_has_the_bytes(view: Any, name: str, start: int, stop: int, there: bool) -> None:
    span = view.span(Block(SPECS[name], start, stop))
    assert (span is not None) == there
    if span is not None:
        span.close()


def test_dequantised_numbers_have_no_span_but_the_others_do(view: Any) -> None:
    mixed = Dequantised(view, {**SPECS, "renamed": TensorSpec("renamed", "BF16", (30,))}, {"renamed": "a"}, {})
    assert mixed.span(Block(mixed.specs["renamed"], 0, 30)) is None
    span = mixed.span(Block(SPECS["a"], 0, 30))
    assert span is not None
    span.close()
