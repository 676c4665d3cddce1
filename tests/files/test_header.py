"""Headers say what the safetensors library says about the same file. Hostile ones are in tests/attacks."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load, save

from agentmerge.files.header import encode_header
from agentmerge.tensors import DTYPES, TensorSpec
from tests.files.headers import read_header

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("header") / "model.safetensors"


texts = st.text(max_size=10)
specs = st.lists(
    st.builds(
        TensorSpec,
        texts.filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(DTYPES)),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
    ),
    unique_by=lambda spec: spec.name,
    max_size=8,
)


def test_a_file_of_the_library_is_read_as_it_was_written(path: Path) -> None:
    arrays = {
        "model.norm": np.ones(3, ml_dtypes.bfloat16),
        "scalar": np.array(2.5, np.float32),
        "none": np.zeros((0, 4), np.float16),
        "steps": np.arange(6, dtype=np.int64).reshape(2, 3),
        "mask": np.array([True, False]),
    }
    data = save(arrays, {"format": "pt"})
    path.write_bytes(data)
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert {name: entry.spec.shape for name, entry in header.tensors.items()} == {
        name: array.shape for name, array in arrays.items()
    }
    for name, entry in header.tensors.items():
        stored = data[header.data_start + entry.begin : header.data_start + entry.end]
        assert stored == arrays[name].tobytes()
        assert DTYPES[entry.spec.dtype] == arrays[name].dtype
    assert header.sha256 == sha256(data[: header.data_start]).hexdigest()


def test_tensors_come_in_the_order_of_their_data(path: Path) -> None:
    entries = {
        "late": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]},
        "early": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "nothing": {"dtype": "U8", "shape": [0], "data_offsets": [1, 1]},
    }
    raw = json.dumps(entries).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"abc")
    assert list(read_header(path).tensors) == ["early", "nothing", "late"]


def test_a_file_without_tensors_is_a_file(path: Path) -> None:
    path.write_bytes(encode_header([], {}))
    header = read_header(path)
    assert (dict(header.tensors), dict(header.metadata)) == ({}, {})


def test_a_header_as_long_as_a_pickle_magic_is_no_pickle(path: Path) -> None:
    raw = b"{}".ljust(0x280)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    assert path.read_bytes().startswith(b"\x80\x02")
    assert read_header(path).data_start == 8 + 0x280


@settings(deadline=None)  # a disk may be slow
@given(specs, st.dictionaries(texts, texts, max_size=3))
def test_an_encoded_header_reads_back_the_same(path: Path, specs: list[TensorSpec], metadata: dict[str, str]) -> None:
    encoded = encode_header(specs, metadata)
    path.write_bytes(encoded + bytes(sum(spec.nbytes for spec in specs)))
    header = read_header(path)
    assert {name: entry.spec for name, entry in header.tensors.items()} == {s.name: s for s in specs}
    assert header.metadata == metadata
    assert header.data_start == len(encoded)
    assert len(encoded) % 64 == 0


@settings(deadline=None)  # a disk may be slow
@given(specs)
def test_the_library_opens_a_file_with_an_encoded_header(path: Path, specs: list[TensorSpec]) -> None:
    path.write_bytes(encode_header(specs, {"format": "pt"}) + bytes(sum(spec.nbytes for spec in specs)))
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {spec.name for spec in specs}
        for spec in specs:
            assert tuple(file.get_slice(spec.name).get_shape()) == spec.shape
            assert file.get_slice(spec.name).get_dtype() == spec.dtype


def test_the_data_lies_in_the_order_of_the_specs() -> None:
    specs = [TensorSpec("z", "U8", (2,)), TensorSpec("a", "U8", (1,))]
    arrays = load(encode_header(specs, {}) + b"\x01\x02\x03")
    assert (arrays["z"].tolist(), arrays["a"].tolist()) == ([1, 2], [3])


def test_the_metadata_comes_first() -> None:
    encoded = encode_header([TensorSpec("a", "U8", (1,))], {"format": "pt"})
    assert encoded[8:].startswith(b'{"__metadata__":{"format":"pt"},"a":{"dtype":"U8"')


@pytest.mark.parametrize("names", [["a", "a"], ["__metadata__"]])
def test_a_name_that_is_taken_can_not_be_encoded(names: list[str]) -> None:
    with pytest.raises(ValueError, match="is taken"):
        encode_header([TensorSpec(name, "U8", (1,)) for name in names], {})
