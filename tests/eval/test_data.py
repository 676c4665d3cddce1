"""Data files as users have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.data import read_rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("content", ['{"q": 1}\n{"q": 2}\n', '\n {"q": 1}\n\n{"q": 2}'])
def test_json_lines_are_read_by_either_ending(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content)
    assert read_rows(tmp_path / name, ("q",)) == [{"q": 1}, {"q": 2}]


def test_a_json_list_is_read_and_a_damaged_file_told(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text('[{"q": 1},\n {"q": 2}]')
    assert read_rows(file, ("q",)) == [{"q": 1}, {"q": 2}]
    file.write_text('[{"q": 1},')
    with pytest.raises(EvalError, match="can't be read as JSON"):
        read_rows(file, ())
    file.write_text('{"q": 1}\n{"q": ')
    with pytest.raises(EvalError, match=r"line 2 is .* expected a JSON object on every line"):
        read_rows(file, ())
