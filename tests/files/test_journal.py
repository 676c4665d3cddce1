"""The journal gives back what was finished, drops what was torn, and serves one run at a time."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge.errors import OutputError
from agentmerge.files.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

WORK: dict[str, Any] = {"recipe": {"seed": 0, "rules": [1, 2]}, "sources": {"base": {"size": 10}}}
ENTRIES: list[dict[str, Any]] = [{"phase": "map", "tensor": f"w{i}", "ranges": [[0, i]]} for i in range(5)]


def written(path: Path, *groups: list[dict[str, Any]]) -> bytes:
    journal = Journal(path)
    journal.begin(WORK)
    for group in groups:
        journal.append(group)
    journal.close()
    return path.read_bytes()


def entries(path: Path) -> list[dict[str, Any]]:
    journal = Journal(path)
    try:
        return journal.begin(WORK)
    finally:
        journal.close()


def text_of(line: bytes) -> Any:
    checksum, _, text = line.partition(b" ")
    assert int(checksum, 16) == zlib.crc32(text)
    return json.loads(text)


def test_a_new_journal_is_empty_and_begins_with_the_work(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.differences(WORK) == []
    assert journal.begin(WORK) == []
    journal.close()
    assert [text_of(line) for line in (tmp_path / "j").read_bytes().splitlines()] == [WORK]


def test_what_was_appended_is_given_back_in_order(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES[:2], [], ENTRIES[2:])
    assert entries(tmp_path / "j") == ENTRIES
    assert entries(tmp_path / "j") == ENTRIES


def test_appending_goes_on_after_what_was_there(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES[:2])
    journal = Journal(tmp_path / "j")
    journal.begin(WORK)
    journal.append(ENTRIES[2:])
    journal.close()
    assert entries(tmp_path / "j") == ENTRIES


@given(cut=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_wherever_a_kill_tears_it_the_whole_lines_before_survive(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "j"
    content = written(path, ENTRIES)
    cut %= len(content) + 1
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    assert entries(path) == ENTRIES[: max(whole - 1, 0)]
    assert path.read_bytes() == content[: len(b"".join(content.splitlines(keepends=True)[: max(whole, 1)]))]


@pytest.mark.parametrize(
    "tail", [b"\0" * 4096, b"{}", b"garbage\n{}\n", b"3\n", b'{"a": 1', b"\xff\n"], ids=lambda tail: repr(tail[:8])
)
def test_rubbish_at_the_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    content = written(tmp_path / "j", ENTRIES)
    (tmp_path / "j").write_bytes(content + tail)
    assert entries(tmp_path / "j") == ENTRIES
    assert (tmp_path / "j").read_bytes() == content


@given(where=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_line_with_a_flipped_bit_is_dropped_and_all_after_it(
    tmp_path_factory: pytest.TempPathFactory, where: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "j"
    content = bytearray(written(path, ENTRIES))
    content[where % len(content)] ^= 1 << bit
    path.write_bytes(content)
    line = written(path.with_name("k"), ENTRIES)[: where % len(content)].count(b"\n")
    assert entries(path) == ENTRIES[: max(line - 1, 0)]


@pytest.mark.parametrize("digit", range(10))
def test_a_digit_that_became_another_one_is_not_believed(tmp_path: Path, digit: int) -> None:
    content = written(tmp_path / "j", [{"answers": {"elements": 123}}])
    (tmp_path / "j").write_bytes(content.replace(b"123", b"12%d" % digit))
    assert entries(tmp_path / "j") == ([{"answers": {"elements": 123}}] if digit == 3 else [])


def test_lines_without_checksums_as_0_1_0_wrote_them_are_not_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("".join(json.dumps(line) + "\n" for line in (WORK, *ENTRIES)))
    journal = Journal(tmp_path / "j")
    assert journal.differences({**WORK, "version": 2}) == ["version was null, is 2"]
    journal.close()
    assert entries(tmp_path / "j") == []


def test_the_output_is_named_where_another_run_writes(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    with pytest.raises(OutputError, match=f"^{tmp_path / 'out'}: another run is writing here. Wait for it"):
        Journal(tmp_path / "j", tmp_path / "out")
    first.close()


def test_other_work_is_refused_with_what_differs(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES)
    other = {"recipe": {"seed": 1, "rules": [1, 2]}, "sources": {"base": {"size": 11}}}
    journal = Journal(tmp_path / "j")
    assert journal.differences(other) == ["recipe.seed was 0, is 1", "sources.base.size was 10, is 11"]
    with pytest.raises(OutputError, match=r"unfinished merge of other inputs: recipe\.seed was 0, is 1; sources"):
        journal.begin(other)
    journal.close()
    assert entries(tmp_path / "j") == ENTRIES


def test_many_differences_are_shortened(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.begin({str(i): i for i in range(9)})
    journal.close()
    journal = Journal(tmp_path / "j")
    with pytest.raises(OutputError, match="and 4 more"):
        journal.begin({str(i): -i - 1 for i in range(9)})
    journal.close()


def test_reset_forgets_everything(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES)
    journal = Journal(tmp_path / "j")
    journal.reset()
    assert journal.begin({"other": 1}) == []
    journal.close()
    assert [text_of(line) for line in (tmp_path / "j").read_bytes().splitlines()] == [{"other": 1}]


def test_a_second_run_is_refused_while_the_first_one_works(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    with pytest.raises(OutputError, match="another run is writing here"):
        Journal(tmp_path / "j")
    first.close()
    first.close()
    Journal(tmp_path / "j").close()


def test_tuples_and_lists_are_the_same_work(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.begin({"rules": (1, 2)})
    assert journal.differences({"rules": [1, 2]}) == []
    journal.close()
    journal = Journal(tmp_path / "j")
    assert journal.begin({"rules": (1, 2)}) == []
    journal.close()
