"""Figures for a paper, as PNG and SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge import probe
from agentmerge.errors import RecipeError, SurveyError
from agentmerge.report import figures

from .conftest import RECIPE

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.record import ProbeRecord


@pytest.mark.slow
def test_every_figure_is_written_twice_and_holds_its_labels(probed: ProbeRecord, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    written = figures.write_figures(probed, tmp_path / "figures")
    assert {path.stem for path in written} == set(figures.FIGURES)
    assert all(path.stat().st_size > 3000 for path in written)
    assert "changed elements (%)" in (tmp_path / "figures" / "density.svg").read_text()
    again = figures.write_figures(probed, tmp_path / "again")
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(written, again, strict=True) if a.suffix == ".svg")


@pytest.mark.slow
def test_a_plain_probe_has_no_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    with pytest.raises(SurveyError, match="--full"):
        figures.write_figures(probe(RECIPE), tmp_path)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"agentmerge\[report\]"):
        figures.needs_matplotlib()
