"""The page of a comparison."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import RecipeError
from agentmerge.eval.compare.figures import figures_of, inline
from agentmerge.eval.compare.page import page
from agentmerge.report import figures

from .conftest import bits, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.compare.rows import Comparison

    from .conftest import Made


@pytest.fixture
def found(made: Callable[..., Made], comparison: Callable[..., Comparison]) -> Comparison:
    scores = {"base": (40, 50, 60), "tool": (120, 50, 60), "code</script>": (10, 110, 61), "ram": (90, 100, 60)}
    for name, right in scores.items():
        model = made(name.replace("/", "_"), merge=merge("ram", 2.5) if name == "ram" else None)
        for (suite, domain), count in zip((("bfcl", "tool"), ("live", "code"), ("gsm8k", "maths")), right, strict=True):
            model.suite(suite, domain, {"": bits(count, 200)})
    return comparison("base", "tool", "code<_script>", "ram")


@pytest.mark.slow
def test_it_has_figures_tables_verdict_and_its_own_numbers(found: Comparison) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    text = page(found)
    assert text.count("<svg ") == 4
    assert "code&lt;_script&gt;" in text
    assert "broke what base could do" in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["models"][3]["seconds"] == 2.5
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


@pytest.mark.slow
def test_figures_are_those_that_can_be_filled(
    found: Comparison, made: Callable[..., Made], comparison: Callable[..., Comparison]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    drawn = figures_of(found)
    assert list(drawn) == ["radar", "bars", "time", "skills"]
    for _, images in drawn.values():
        assert images["png"].startswith(b"\x89PNG")
        assert inline(images["svg"]).startswith('<svg role="img"')
    made("alone").suite("bfcl", "tool", {"": bits(3, 8)})
    assert list(figures_of(comparison("alone"))) == ["bars", "skills"]


def test_without_matplotlib_the_extra_is_named(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="--report: needs matplotlib"):
        page(found)
