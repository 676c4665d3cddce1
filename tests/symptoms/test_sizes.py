"""A report on numbers of any size: it tells what is true, or nothing, and never a number that was cut off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.report.page import page, page_data
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.record import MergeRecord, ProbeRecord

pytestmark = pytest.mark.usefixtures("unsynced")
SIZES = [1e30, 1e18, 1e7, 3e6, 1.0, 1e-6, 1e-9, 1e-12, 1e-14, 1e-20, 1e-30, 2.0**-140]
"""Of a change; squares of the first and the last ones are beyond float32."""
A, B = (1, 2, 0, 4), (0, 1, 3, -2)


def recipe(folder: Path, size: float, rows: Mapping[str, Any], base: Any = (0, 0, 0, 0)) -> dict[str, Any]:
    """Agents that are the rows times a size, whatever the threshold."""
    for name, row in {**rows, "base": base}.items():
        write_checkpoint(folder / name, {"w": (np.float32(size) * np.array(row, np.float32)).astype(np.float32)})
    agents = {name: str(folder / name) for name in rows}
    return {"base": str(folder / "base"), "agents": agents, "method": {"name": "ram", "threshold": 0}}


def finite(record: MergeRecord | ProbeRecord) -> None:
    """The page's data are JSON, which has no NaN and no inf."""
    json.dumps(page_data(record), allow_nan=False)
    assert "<html" in page(record)


@pytest.mark.parametrize("size", SIZES)
def test_what_a_merge_keeps_is_told_at_any_size(tmp_path: Path, size: float) -> None:
    """RAM: 1, (2 + 1) / 2, 3, (4 - 2) / 2. Of a it keeps 1 + 3 + 4 of 21, of b 1.5 + 9 - 2 of 14."""
    record = merge(recipe(tmp_path, size, {"a": A, "b": B}), tmp_path / "out", full=True)
    assert record.retention is not None
    kept = {name: (row.unique, row.shared, row.changed) for name, row in record.retention.items()}
    assert kept == {
        "a": (1, pytest.approx(7 / 20, rel=1e-5), pytest.approx(8 / 21, rel=1e-5)),
        "b": (1, pytest.approx(-0.5 / 5, rel=1e-5), pytest.approx(8.5 / 14, rel=1e-5)),
    }
    finite(record)


@pytest.mark.parametrize("size", SIZES)
def test_norms_shares_and_cosines_are_told_at_any_size(tmp_path: Path, size: float) -> None:
    record = probe(recipe(tmp_path, size, {"a": A, "b": B}), full=True)
    assert record.findings is not None
    norms = [row.norm for row in record.findings.totals]
    assert norms == pytest.approx([size * 21**0.5, size * 14**0.5], rel=1e-6, abs=0)
    assert [row.unique_norm_share for row in record.findings.totals] == pytest.approx([1 / 21, 9 / 14])
    (pair,) = [row for row in record.findings.pairs if row.scope == "model"]
    assert pair.cosine == pytest.approx((2 - 8) / (20 * 5) ** 0.5)
    kept = [row.retention for row in record.findings.dilution if row.method == "ram"]
    assert kept == pytest.approx([8 / 21, 8.5 / 14])
    finite(record)


@pytest.mark.parametrize("method", ["ram", "ram_plus", "ram_plus_auto", "task_arithmetic", "ties"])
def test_a_change_beyond_float32_is_told_as_unknown(tmp_path: Path, method: str) -> None:
    """The difference of two finite numbers is inf: nothing that hangs on it is known; what does not is told."""
    rows = {"a": [-1, 1, 0.5, 1], "b": [1, 1, 1, 0.5]}
    found = probe({**recipe(tmp_path, 3e38, rows, (1, 1, 1, 1)), "method": method}, full=True)
    assert found.findings is not None
    first, second = found.findings.totals
    assert (first.norm, first.unique_norm_share) == (None, None)
    assert second.norm == pytest.approx(1.5e38)
    finite(found)
