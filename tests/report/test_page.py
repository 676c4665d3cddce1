"""The page is one file, holds its record and nothing of the network."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from agentmerge import probe
from agentmerge.errors import SurveyError
from agentmerge.report.page import page, script_json

from .conftest import GOLDEN, RECIPE

if TYPE_CHECKING:
    from agentmerge.record import MergeRecord, ProbeRecord


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_holds_the_record_without_its_raw_answers(probed: ProbeRecord) -> None:
    data = data_of(page(probed))
    assert data.pop("kind") == "probe"
    assert data == probed.model_dump(mode="json", exclude={"answers"})


def test_the_golden_overlap_is_on_the_page(merged: MergeRecord) -> None:
    data = data_of(page(merged))
    expected = json.loads((GOLDEN / "expected/overlap.json").read_text())["agents"]
    for name, agent in expected.items():
        shown = data["survey"]["agents"][name]
        assert shown["changed_by_exactly"] == agent["changed_by_exactly_k_agents"]
        assert shown["density"] == agent["density"]
        assert shown["overlap_unique_ratio"] == agent["overlap_unique_ratio"]
        assert shown["scale"] == agent["scale_paper_r0.1_alpha2"]
    assert set(data["retention"]) == set(expected)


def test_the_page_needs_no_network_and_is_small(merged: MergeRecord) -> None:
    text = page(merged)
    assert len(text.encode()) < 3_000_000
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=", text)
    own = re.sub(
        r"<script>\s*// https://d3js.org.*?</script>|<script>\s*// @observablehq.*?</script>", "", text, flags=re.DOTALL
    )
    assert "http://" not in own.replace("http://www.w3.org/", "")
    assert "https://" not in own.replace(json.dumps(data_of(text))[1:-1], "")


def test_a_name_can_not_leave_the_data(probed: ProbeRecord) -> None:
    assert probed.findings is not None
    evil = "</script><script>alert(1)</script>"
    text = page(probed.model_copy(update={"findings": probed.findings.model_copy(update={"headline": evil})}))
    assert evil not in text
    assert script_json({"a": evil}).count("<") == 0
    assert json.loads(script_json({"a": evil})) == {"a": evil}


def test_a_record_without_findings_has_no_page() -> None:
    with pytest.raises(SurveyError, match="Probe with --full"):
        page(probe(RECIPE))


def test_one_agent_alone_has_a_page() -> None:
    record = probe({**RECIPE, "agents": {"code": RECIPE["agents"]["code"]}}, full=True)
    data = data_of(page(record))
    assert data["findings"]["pairs"] == []
    assert data["findings"]["headline"] == "code changed 3.0% of the elements."
