"""Published rows: what the data file holds, and how it meets a comparison's columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.compare.references import PAPER, matched, published, shipped
from agentmerge.eval.compare.rows import UnitRow

if TYPE_CHECKING:
    from pathlib import Path

UNITS = [
    UnitRow(id="bfcl.live", label="BFCL live", kind="column", skill="tool", columns=["bfcl.live"]),
    UnitRow(id="skill/tool", label="tool", kind="skill", skill="tool", columns=["bfcl.live"]),
    UnitRow(id="mean", label="mean", kind="mean", skill="", columns=["bfcl.live"]),
]


def test_every_row_says_its_table_and_where_it_was_read() -> None:
    found = shipped()
    assert PAPER in found
    for source in found.values():
        assert source.read
        assert source.url.startswith("https://arxiv.org/abs/")
        for row in source.rows:
            assert row.table
            assert row.scores or row.mean is not None
            assert all(0 <= score <= 100 for score in [*row.scores.values(), row.mean or 0])


def test_what_is_called_a_mean_is_the_mean_of_its_row() -> None:
    """All four domains, rounded to one digit: half a tenth at most, and the mean's own rounding."""
    rows = [row for source in shipped().values() for row in source.rows if row.mean is not None and len(row.scores) > 1]
    assert len(rows) == 7
    for row in rows:
        assert row.mean == pytest.approx(sum(row.scores.values()) / len(row.scores), abs=0.055), row.label


def test_scores_come_under_the_skill_column_or_id_of_their_name() -> None:
    source = published("resmerge-7b")
    by_label = {row.label: row for row in matched(source, UNITS)}
    assert by_label["RAM"].scores == {"skill/tool": pytest.approx(0.012)}
    assert by_label["RAM"].elsewhere == pytest.approx({"maths": 0.432, "GPQA": 0.372, "code": 0.491})
    assert by_label["RAM"].mean == pytest.approx(0.3267)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    row = {"label": "RAM+", "table": "8", "scores": {"BFCL Live": 70.0, "bfcl.live": 70.0}}
    path.write_text(json.dumps({"title": "T", "url": "u", "read": "r", "setting": "s", "rows": [row]}))
    (found,) = matched(published(str(path)), UNITS)
    assert (found.source, found.table) == ("mine", "T, table 8")
    assert found.scores == {"bfcl.live": 0.7}
    path.write_text(json.dumps({"title": "T", "rows": [{}]}))
    with pytest.raises(EvalError, match="not a reference: url: Field required"):
        published(str(path))


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(EvalError, match=r"no 'resmerge7b'\. Did you mean 'resmerge-7b'"):
        published("resmerge7b")
