"""The tables of docs/harm.md and docs/grams.md are what the saved results make of them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "experiments" / "tiny_agents"


@pytest.mark.parametrize(("name", "page", "count"), [("harm", "harm", 3), ("keep", "grams", 1)])
def test_the_tables_are_what_the_results_give(
    monkeypatch: pytest.MonkeyPatch, name: str, page: str, count: int
) -> None:
    monkeypatch.syspath_prepend(TINY)
    made = import_module(f"{name}_tables").tables(json.loads((TINY / "results" / f"{name}.json").read_text()))
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert len(made) == count
    for mark, lines in made.items():
        assert "\n".join([f"<!-- {mark} -->", *lines, f"<!-- end of {mark} -->"]) in text, mark
