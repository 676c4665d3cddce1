"""JSON and YAML become plain data, strictly or tolerantly, and what is broken is told by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import json_or_nothing, parse_yaml, read_json, strict_json, yaml_or_nothing

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = [b"", b"{", b"\xff", b"\x00", b"[" * 100_000, b"{}x"]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_json_file_is_named_or_passed_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="not valid JSON: ") as caught:
        read_json(path)
    (problem,) = caught.value.problems
    assert problem.where == Where(path=str(path))
    assert problem.todo == "Fetch the file again."
    assert json_or_nothing(path) == {}
    with pytest.raises(SourceError, match="it is not JSON as expected"):
        strict_json(content, "it")


@pytest.mark.parametrize("content", [b"[1]", b"3", b"null", b'"x"'])
def test_json_that_is_no_object_is_named_or_passed_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="expected a JSON object, found"):
        read_json(path)
    assert json_or_nothing(path) == {}
    with pytest.raises(SourceError, match="expected a JSON object"):
        strict_json(content, "it")


def test_a_file_that_is_not_there_is_told_or_passed_over(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="can't be read"):
        read_json(tmp_path / "none.json")
    assert json_or_nothing(tmp_path / "none.json") == {}


def test_what_people_write_is_read_and_what_a_header_may_not_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": NaN, "b": 1, "b": 2}')
    assert read_json(path)["b"] == 2
    for text in (b'{"a": NaN}', b'{"b": 1, "b": 2}'):
        with pytest.raises(SourceError):
            strict_json(text, "it")


def test_yaml_with_a_key_twice_is_refused_where_it_is_meant_and_read_where_it_is_passed_on() -> None:
    with pytest.raises(ValueError, match="'a' stands twice"):
        parse_yaml("a: 1\na: 2")
    assert yaml_or_nothing("a: 1\na: 2") == {"a": 2}


@pytest.mark.parametrize("text", ["a: [", "2024-13-45", "[" * 700, "{1: 2}: 3"])
def test_broken_yaml_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_yaml(text)
    assert yaml_or_nothing(text) == {}
