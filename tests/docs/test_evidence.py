"""The pages of evidence are what their texts and the saved results make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = "from report import text; print(text(), end='')"
LARGER = """
import json
from hypotheses import REGISTERED2, read_registered
from report import pages
from results import read_seeds
print(json.dumps(pages(read_seeds(), read_registered(), read_registered(REGISTERED2))))
"""
GUARD = """
from hypotheses import REGISTERED2, read_registered
from report import guard_part
from results import read_seeds
print(guard_part(read_seeds(), read_registered(), read_registered(REGISTERED2)), end='')
"""


def made(program: str, folder: str) -> str:
    """What a script beside the experiment's modules prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "experiments" / folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_page_of_the_tiny_agents_is_made_from_its_text_and_the_results() -> None:
    assert made(TINY, "tiny_agents") == (ROOT / "docs/evidence-tiny.md").read_text(encoding="utf-8")


def test_the_page_of_evidence_and_its_tables_are_made_from_their_texts_and_the_results() -> None:
    found = json.loads(made(LARGER, "agents_135m"))
    assert set(found) == {"evidence.md", "evidence-135m.md", "evidence-135m-2.md", "evidence-135m-methods.md"}
    for page, text in found.items():
        assert text == (ROOT / "docs" / page).read_text(encoding="utf-8"), page


def test_what_the_guard_did_at_135m_is_made_from_the_results() -> None:
    found = made(GUARD, "agents_135m")
    assert "| damaged | sort |" in found
    assert found in (ROOT / "docs/harm.md").read_text(encoding="utf-8")


def test_the_results_name_no_place_of_a_machine() -> None:
    for path in (ROOT / "experiments/agents_135m/results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert "/root" not in text, path.name
        assert "/tmp" not in text, path.name
        harm = json.loads(text)["training"]["harm"]
        assert not harm["base"].startswith("/"), path.name
        assert not harm["data"].startswith("/"), path.name


def test_every_figure_of_the_pages_is_there() -> None:
    for page in ("evidence.md", "evidence-135m.md", "evidence-135m-2.md", "evidence-tiny.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for link in text.split("](figures/")[1:]:
            assert (ROOT / "docs/figures" / link.split(")")[0]).is_file(), (page, link.split(")")[0])
