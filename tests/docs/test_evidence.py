"""The page of evidence is what its text and the saved results make of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = "from report import text; print(text(), end='')"


def test_the_page_of_evidence_is_made_from_its_text_and_the_results() -> None:
    made = subprocess.run(
        [sys.executable, "-c", MADE], cwd=ROOT / "experiments/tiny_agents", capture_output=True, text=True, check=True
    )
    assert made.stdout == (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
