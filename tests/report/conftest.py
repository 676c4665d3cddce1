"""Records of the golden set, and their pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentmerge import merge, probe
from agentmerge.report.page import write_page

if TYPE_CHECKING:
    from agentmerge.record import MergeRecord, ProbeRecord

GOLDEN = Path(__file__).parents[1] / "golden"
RECIPE = {
    "base": str(GOLDEN / "base"),
    "agents": {name: str(GOLDEN / name) for name in ("code", "tool", "memory")},
    "method": "ram_plus",
}


@pytest.fixture(scope="session")
def probed() -> ProbeRecord:
    return probe(RECIPE, full=True)


@pytest.fixture(scope="session")
def merged(tmp_path_factory: pytest.TempPathFactory) -> MergeRecord:
    return merge(RECIPE, tmp_path_factory.mktemp("merged") / "out", full=True)


@pytest.fixture(scope="session")
def page_file(merged: MergeRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a merge, which has every panel."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(merged, path)
    return path
