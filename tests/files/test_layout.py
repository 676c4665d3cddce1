"""The layout of an output is known to the byte before it is written. Reads with the safetensors library."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from agentmerge.files.layout import Layout, index_json, plan_layout
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from pathlib import Path

GB = 10**9


def spec(name: str, elements: int, dtype: str = "BF16") -> TensorSpec:
    return TensorSpec(name, dtype, (elements,))


def names_of(layout: Layout) -> list[list[str]]:
    return [[spec.name for spec in shard.specs] for shard in layout.shards]


def test_what_fits_in_one_shard_is_one_file_without_an_index() -> None:
    layout = plan_layout([spec("b", 10), spec("a", 10)], 40)
    assert [shard.name for shard in layout.shards] == ["model.safetensors"]
    assert names_of(layout) == [["b", "a"]]
    assert layout.total_size == 40
    assert index_json(layout) is None


def test_a_new_shard_begins_with_the_tensor_that_would_not_fit() -> None:
    layout = plan_layout([spec("b", 10), spec("a", 10), spec("c", 1)], 39)
    assert names_of(layout) == [["b"], ["a", "c"]]
    assert [shard.name for shard in layout.shards] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_a_tensor_larger_than_a_shard_has_a_shard_of_its_own() -> None:
    layout = plan_layout([spec("small", 1), spec("huge", 1000), spec("other", 1)], 10)
    assert names_of(layout) == [["small"], ["huge"], ["other"]]


def test_tensors_without_elements_open_no_shard() -> None:
    layout = plan_layout([spec("none", 0), spec("full", 5), spec("empty", 0)], 10)
    assert names_of(layout) == [["none", "full", "empty"]]


def test_an_output_without_tensors_is_one_file() -> None:
    layout = plan_layout([], GB)
    assert names_of(layout) == [[]]
    assert layout.shards[0].size == len(layout.shards[0].header)


def test_the_index_has_sorted_keys_and_both_totals() -> None:
    layout = plan_layout([TensorSpec("b", "BF16", (2, 5)), spec("a", 3, "F32")], 20, {"made": "today"})
    text = index_json(layout)
    assert text == (
        b"{\n"
        b'  "metadata": {\n'
        b'    "total_parameters": 13,\n'
        b'    "total_size": 32\n'
        b"  },\n"
        b'  "weight_map": {\n'
        b'    "a": "model-00002-of-00002.safetensors",\n'
        b'    "b": "model-00001-of-00002.safetensors"\n'
        b"  }\n"
        b"}\n"
    )


def test_a_shard_size_under_one_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="shard_size is 0"):
        plan_layout([], 0)


@pytest.mark.parametrize("shard_size", [1, GB])
def test_two_tensors_of_one_name_are_refused(shard_size: int) -> None:
    with pytest.raises(ValueError, match="name"):
        plan_layout([spec("a", 10), spec("a", 10)], shard_size)


tensors = st.lists(
    st.builds(
        TensorSpec,
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable()),
        st.sampled_from(["F32", "F16", "I64", "U8", "BOOL"]),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    unique_by=lambda spec: spec.name,
    max_size=12,
)


@settings(deadline=None)  # a disk may be slow
@given(tensors, st.integers(1, 200))
def test_the_places_cover_every_shard_without_gaps_in_the_given_order(specs: list[TensorSpec], shard_size: int) -> None:
    layout = plan_layout(specs, shard_size)
    assert [place.spec for place in layout.places.values()] == specs
    cursors = [len(shard.header) for shard in layout.shards]
    for place in layout.places.values():
        assert place.offset == cursors[place.shard]
        cursors[place.shard] += place.spec.nbytes
    assert cursors == [shard.size for shard in layout.shards]
    for shard in layout.shards:
        data = shard.size - len(shard.header)
        assert data <= shard_size or sum(spec.nbytes > 0 for spec in shard.specs) == 1


@settings(deadline=None)  # a disk may be slow
@given(tensors, st.integers(1, 200))
def test_the_safetensors_library_reads_what_is_written_at_the_places(
    tmp_path_factory: pytest.TempPathFactory, specs: list[TensorSpec], shard_size: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("layout")
    layout = plan_layout(specs, shard_size, {"by": "test"})
    files = [bytearray(shard.header.ljust(shard.size, b"\0")) for shard in layout.shards]
    for number, place in enumerate(layout.places.values()):
        files[place.shard][place.offset : place.offset + place.spec.nbytes] = bytes([number % 2]) * place.spec.nbytes
    for shard, data in zip(layout.shards, files, strict=True):
        (folder / shard.name).write_bytes(data)
    for number, (name, place) in enumerate(layout.places.items()):
        with safe_open(folder / layout.shards[place.shard].name, "numpy") as file:
            assert file.metadata() == {"format": "pt", "by": "test"}
            tensor = file.get_tensor(name)
        assert tensor.shape == place.spec.shape
        assert np.all(np.frombuffer(tensor.tobytes(), np.uint8) == number % 2)
    index = index_json(layout)
    assert index is None or set(json.loads(index)["weight_map"]) == set(layout.places)
