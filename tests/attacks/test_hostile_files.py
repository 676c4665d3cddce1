"""Whatever bytes a file holds, it is read or refused calmly: where, found, expected, what to do."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load, save

from agentmerge.errors import SourceError, SourceNotFoundError
from agentmerge.files.header import Header, encode_header
from agentmerge.files.layout import INDEX
from agentmerge.sources.opening import opened
from agentmerge.tensors import DTYPES, TensorSpec
from tests.files.headers import read_header

if TYPE_CHECKING:
    from pathlib import Path

FLOAT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "model.safetensors"


def file_of(header: str | bytes | dict[str, Any], data: int = 8) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header)
    raw = header.encode() if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message
    assert len(message) < 1500
    message.encode()
    return message


def read_or_refuse(path: Path, content: bytes) -> Header | None:
    path.write_bytes(content)
    try:
        return read_header(path)
    except SourceError:
        return None


# files that are no safetensors files


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"1234567", "7 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl", "PyTorch (zip)"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "PyTorch (pickle)"),
        (b"GGUF\x03\x00\x00\x00\x23\x01\x00\x00", "GGUF"),
        (b"<!DOCTYPE html><html>404</html>", "an HTML or XML page, expected safetensors"),
        ((9).to_bytes(8, "little") + b"{}", "7 bytes of its header are missing"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "expected at most 100000000"),
    ],
)
def test_a_file_of_another_kind_is_told_what_it_is(path: Path, content: bytes, found: str) -> None:
    assert found in refusal(path, content)


@pytest.mark.parametrize("what", ["nothing", "a folder", "a pipe", "a locked file", "a long name"])
def test_what_can_not_be_read_is_told(tmp_path: Path, what: str) -> None:
    path = tmp_path / ("x" * 300 if what == "a long name" else "model.safetensors")
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a locked file":
        path.touch(0)
    with pytest.raises(SourceNotFoundError if what == "nothing" else SourceError, match=path.name):
        read_header(path)


# headers that are not what a header is


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{}x", "not JSON"),
        ("\ufeff{}", "not JSON"),
        (b'{"\xff": 1}', "can't decode byte 0xff"),
        ("[]", "expected a JSON object"),
        ("null", "expected a JSON object"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": ' + "[" * 100_000, "not JSON"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "expected exactly"),
        ('{"a": ' + '{"b":' * 100_000, "not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": {"dtype": "F32", "dtype": "F16"}}', "'dtype' appears twice"),
        ('{"__metadata__": {"x": "1", "x": "2"}}', "'x' appears twice"),
        ('{"__metadata__": {}, "__metadata__": {}}', "'__metadata__' appears twice"),
        (r'{"\ud800": 1}', "surrogates"),
        (r'{"__metadata__": {"x": "\udfff"}}', "surrogates"),
        ('{"__metadata__": []}', "expected names with texts"),
        ('{"__metadata__": null}', "expected names with texts"),
        ('{"__metadata__": {"x": 1}}', "expected names with texts"),
    ],
)
def test_a_header_that_is_no_header_is_told(path: Path, header: str | bytes, found: str) -> None:
    message = refusal(path, file_of(header))
    assert found in message
    assert "download or save it again" in message


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (1, "expected exactly dtype, shape, data_offsets"),
        ([], "expected exactly"),
        ({}, "expected exactly"),
        ({"dtype": "F32", "shape": [2]}, "expected exactly"),
        ({**FLOAT, "more": 1}, "expected exactly"),
        ({**FLOAT, "dtype": 5}, "has dtype 5, expected a safetensors dtype"),
        ({**FLOAT, "dtype": ["F32"]}, "has dtype ['F32']"),
        ({**FLOAT, "dtype": "bf16"}, "Did you mean 'BF16'?"),
        ({**FLOAT, "dtype": "x" * 10**6}, "expected a safetensors dtype"),
        ({**FLOAT, "shape": 2}, "has shape 2"),
        ({**FLOAT, "shape": [True, 2]}, "has shape [True, 2]"),
        ({**FLOAT, "shape": [2.0]}, "has shape [2.0]"),
        ({**FLOAT, "shape": [-2]}, "has shape [-2], expected integers from 0 on"),
        ({**FLOAT, "shape": ["2"]}, "has shape ['2']"),
        ({**FLOAT, "shape": [2**32, 2**31]}, "expected under 2^63 elements"),
        ({**FLOAT, "shape": [0, 2**63]}, "expected under 2^63 elements"),
        ({**FLOAT, "shape": [2] * 10**6}, "expected under 2^63 elements"),
        ({**FLOAT, "data_offsets": None}, "has data_offsets None, expected [begin, end]"),
        ({**FLOAT, "data_offsets": [0]}, "expected [begin, end]"),
        ({**FLOAT, "data_offsets": [0, 8, 8]}, "expected [begin, end]"),
        ({**FLOAT, "data_offsets": [8, 0]}, "expected [begin, end]"),
        ({**FLOAT, "data_offsets": [-8, 0]}, "expected [begin, end]"),
        ({**FLOAT, "data_offsets": [0, 8.0]}, "expected [begin, end]"),
        ({**FLOAT, "data_offsets": [False, 8]}, "expected [begin, end]"),
        ({**FLOAT, "data_offsets": [0, 7]}, "has 7 bytes (data_offsets), but F32 [2] takes 8"),
        ({**FLOAT, "shape": [0]}, "has 8 bytes (data_offsets), but F32 [0] takes 0"),
        ({**FLOAT, "shape": []}, "has 8 bytes (data_offsets), but F32 [] takes 4"),
    ],
)
def test_a_tensor_that_is_no_tensor_is_told_by_name(path: Path, entry: object, found: str) -> None:
    message = refusal(path, file_of({"model.norm": entry}))
    assert "tensor 'model.norm'" in message
    assert found in message


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "C64"])
def test_a_dtype_of_the_format_that_we_do_not_know_is_told_so(path: Path, dtype: str) -> None:
    message = refusal(path, file_of({"w": {**FLOAT, "dtype": dtype}}))
    assert f"tensor 'w' has dtype {dtype}, which is not supported" in message


def at(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "parts"),
    [
        ({"a": at(0, 8)}, 5, ["truncated: 3 bytes are missing, from tensor 'a' on", "found 5"]),
        ({"a": at(0, 4), "b": at(4, 8)}, 5, ["truncated: 3 bytes are missing, from tensor 'b' on"]),
        ({"a": at(0, 2**62)}, 0, ["truncated: 4611686018427387904 bytes are missing"]),
        ({"a": at(0, 8)}, 9, ["1 bytes more than the header describes"]),
        ({}, 1, ["1 bytes more than the header describes"]),
        ({"a": at(1, 8)}, 8, ["tensor 'a' leaves a gap", "at byte 1 of the data, expected 0"]),
        ({"a": at(0, 4), "b": at(5, 8)}, 8, ["tensor 'b' leaves a gap", "at byte 5", "expected 4"]),
        ({"a": at(0, 4), "b": at(3, 8)}, 8, ["tensor 'b' overlaps", "at byte 3", "expected 4"]),
        ({"a": at(0, 8), "b": at(0, 8)}, 8, ["tensor 'b' overlaps", "expected 8"]),
        ({"a": at(0, 8), "b": at(4, 4)}, 8, ["tensor 'b' overlaps"]),
    ],
)
def test_the_data_must_be_covered_exactly(path: Path, header: dict[str, Any], data: int, parts: list[str]) -> None:
    message = refusal(path, file_of(header, data))
    for part in parts:
        assert part in message


# whatever the bytes


@settings(deadline=None)  # a disk may be slow
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(path: Path, content: bytes) -> None:
    read_or_refuse(path, content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {"dtype": st.sampled_from([*DTYPES, "F4"]) | json_values},
    optional={"shape": st.lists(st.integers(0, 3)) | json_values, "data_offsets": json_values},
)
headers = st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), entries | json_values, max_size=4)


@settings(deadline=None)  # a disk may be slow
@given(headers, st.integers(0, 20))
def test_any_json_is_read_or_refused(path: Path, header: dict[str, Any], data: int) -> None:
    read_or_refuse(path, file_of(header, data))


VALID = save({"a": np.arange(3, dtype=np.float32), "b": np.ones((2, 2), np.float16)}, {"format": "pt"})


@settings(deadline=None)  # a disk may be slow
@given(st.data())
def test_a_damaged_file_is_read_or_refused_and_never_read_differently_from_the_library(
    path: Path, data: st.DataObject
) -> None:
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    header = read_or_refuse(path, bytes(content))
    if header is None:
        return
    try:
        arrays = load(bytes(content))
    except (SafetensorError, KeyError, TypeError):
        pytest.fail(f"we read what the library refuses: {bytes(content)!r}")
    assert {name: array.shape for name, array in arrays.items()} == {
        name: entry.spec.shape for name, entry in header.tensors.items()
    }


@settings(deadline=None)  # a disk may be slow
@given(st.integers(0, len(VALID) - 1))
def test_a_file_cut_anywhere_is_refused(path: Path, length: int) -> None:
    refusal(path, VALID[:length])


@settings(deadline=None)  # a disk may be slow
@given(json_values)
def test_any_index_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, weight_map: object) -> None:
    folder = tmp_path_factory.mktemp("index")
    (folder / "F32").write_bytes(encode_header([TensorSpec("a", "F32", (0,))], {}))
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with suppress(SourceError), opened(None, str(folder)) as source:
        assert weight_map == {"a": "F32"}
        assert list(source.specs) == ["a"]
