"""The page in headless Chromium: charts drawn, nothing on the console, keyboard reachable, no sideways scroll."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge import probe
from agentmerge.report.page import write_page

from .browser import Browser, missing
from .conftest import RECIPE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing()), reason=f"not installed: {missing()} (apt-get install chromium chromium-driver)"
    ),
]
TAB = "\ue004"
LABELS = """
const charts = [...document.querySelectorAll('.plot > div')];
return charts.map((d) => [d.getAttribute('aria-label'), !!d.querySelector('svg')])
"""
ACTING = """
return [...document.querySelectorAll('button, select, summary')].map((e, i) => (e.dataset.n = i, String(i)))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_in_silence_and_fits(browser: Browser, page_file: Path, width: int, theme: str) -> None:
    browser.open(page_file, width, theme)
    charts = browser.run(LABELS)
    assert len(charts) == 16
    assert all(drawn and label for label, drawn in charts), charts
    assert browser.console() == []
    browser.run("document.getElementById('tables').click()")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.querySelectorAll('table').length") == browser.run(
        "return document.querySelectorAll('details').length"
    )
    assert browser.console() == []


def test_a_page_of_one_agent_is_drawn(browser: Browser, tmp_path: Path) -> None:
    record = probe({**RECIPE, "agents": {"code": RECIPE["agents"]["code"]}}, full=True)
    write_page(record, tmp_path / "one.html")
    browser.open(tmp_path / "one.html", 390)
    assert all(drawn for _, drawn in browser.run(LABELS))
    assert browser.console() == []


def test_everything_that_acts_is_reached_by_the_keyboard(browser: Browser, page_file: Path) -> None:
    browser.open(page_file, 1280)
    wanted = set(browser.run(ACTING))
    reached = set()
    for _ in range(len(wanted) + 10):
        browser.press(TAB)
        reached.add(browser.run("return document.activeElement.dataset.n ?? ''"))
    assert wanted <= reached


def test_the_theme_can_be_turned(browser: Browser, page_file: Path) -> None:
    browser.open(page_file, 390, "light")
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = browser.run(colour)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colour) != before


def test_the_heat_maps_show_what_is_chosen(browser: Browser, page_file: Path) -> None:
    browser.open(page_file, 1280)
    label = "return document.querySelector('#modules .plot > div').getAttribute('aria-label')"
    before = browser.run(label)
    browser.run(
        "const s = document.getElementById('measure'); s.value = 'unique'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.run(label) != before


def test_numbers_on_the_page_are_those_of_the_record(browser: Browser, page_file: Path, merged) -> None:
    browser.open(page_file, 1280)
    browser.run("document.getElementById('tables').click()")
    text = browser.run("return document.body.innerText")
    for agent in merged.survey.agents.values():
        assert f"{agent.changed:,}" in text
        assert f"{100 * agent.density:.3f}%" in text
    for kept in merged.retention.values():
        assert f"{kept.unique:.4f}".rstrip("0") in text
