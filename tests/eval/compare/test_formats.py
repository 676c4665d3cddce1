"""The same tables in every format."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest

from agentmerge.eval.compare.formats import comma_separated, latex, markdown
from agentmerge.eval.compare.layout import grids
from agentmerge.eval.compare.page import headline, with_code
from agentmerge.eval.compare.references import Published, PublishedRow
from agentmerge.eval.compare.rows import Judgement

from .conftest import bits, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.compare.rows import Comparison

    from .conftest import Made


@pytest.fixture
def found(made: Callable[..., Made], comparison: Callable[..., Comparison]) -> Comparison:
    for name, right in (("base", 40), ("tool_1", 120)):
        made(name).suite("bfcl", "tool", {"": bits(right, 200)})
    for name, right in (("ram", 130), ("ties", 60)):
        made(name, merge=merge(name, 2.5)).suite("bfcl", "tool", {"": bits(right, 200)})
    rows = [PublishedRow(label="RAM & co", table="1", scores={"tool": 61.5, "GPQA": 30.0}, mean=44.0)]
    source = Published(name="other", title="Other", url="https://example.org", read="there", setting="", rows=rows)
    return comparison("base", "tool_1", "ram", "ties", references=[source])


def test_markdown_marks_best_second_and_what_beats_the_specialist(found: Comparison) -> None:
    lines = markdown(found).splitlines()
    assert "| model | tool: BFCL (n=200) | mean | merge, s |" in lines
    assert "| base | 20.0 ± 2.8 | 20.0 ± 2.8 | - |" in lines
    assert "| tool\\_1 | 60.0 ± 3.5 | 60.0 ± 3.5 | - |" in lines
    assert "| ram | **65.0** ± 3.4 ↑ | **65.0** ± 3.4 ↑ | 2.5 |" in lines
    assert "| ties | <u>30.0</u> ± 3.2 | <u>30.0</u> ± 3.2 | 2.5 |" in lines
    assert any(line.startswith("| tool\\_1 | +40.0 (") for line in lines)
    assert "| RAM & co [other] | 61.5 | 30.0 | 44.0 |" in lines


def test_latex_says_the_same_and_escapes(found: Comparison) -> None:
    text = latex(found)
    assert r"ram & \textbf{65.0} $\pm$ 3.4$\uparrow$ & \textbf{65.0} $\pm$ 3.4$\uparrow$ & 2.5 \\" in text
    assert r"tool\_1 & 60.0 $\pm$ 3.5" in text
    assert r"RAM \& co [other]" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == len(grids(found))
    assert r"in \%" in text


def test_csv_has_every_cell_with_all_its_digits(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated(found))))
    mine = {(row["row"], row["unit"]): row for row in rows}
    assert float(mine["ram", "mean"]["mean"]) == 0.65
    assert mine["ram", "mean"]["rank"] == "1"
    assert float(mine["ram", "mean"]["difference"]) == pytest.approx(0.45)
    assert mine["base", "mean"]["difference"] == ""
    assert float(mine["RAM & co [other]", "skill/tool"]["mean"]) == 0.615
    assert float(mine["RAM & co [other]", "GPQA"]["mean"]) == 0.3
    assert len(rows) == len(found.cells) + 3


def test_markdown_leaves_code_in_sentences_alone(found: Comparison) -> None:
    said = Judgement(rule="x", rows=[], units=[], text="tool_1: use `wudi_auto` or `a|b`, not a_b `")
    lines = markdown(found.model_copy(update={"verdict": [said]})).splitlines()
    assert "- tool\\_1: use `wudi_auto` or `a|b`, not a\\_b `" in lines
    models = [one.model_copy(update={"name": "`a|b_c`"}) if one.name == "tool_1" else one for one in found.models]
    cells = [cell.model_copy(update={"row": "`a|b_c`"}) if cell.row == "tool_1" else cell for cell in found.cells]
    text = markdown(found.model_copy(update={"models": models, "cells": cells, "differences": []}))
    assert "| `a\\|b_c` | 60.0" in text


def test_a_headline_says_what_matters(found: Comparison) -> None:
    assert headline(found) == "ram is the best of 2 merges"


def test_code_in_sentences_is_code_and_the_rest_is_escaped() -> None:
    assert with_code("use `skip` <b>") == "use <code>skip</code> &lt;b&gt;"
