"""The tables of docs/harm.md are what the saved results make of them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "experiments" / "tiny_agents"


def test_the_tables_are_what_the_results_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TINY)
    made = import_module("harm_tables").tables(json.loads((TINY / "results" / "harm.json").read_text()))
    page = (ROOT / "docs" / "harm.md").read_text(encoding="utf-8")
    assert len(made) == 3
    for name, lines in made.items():
        assert "\n".join([f"<!-- {name} -->", *lines, f"<!-- end of {name} -->"]) in page, name
