"""What is compared of evaluations, and with what."""

from __future__ import annotations

from agentmerge.frozen import Settings


class Wanted(Settings):
    """Which columns are compared, to which row, and what is set beside them."""

    suites: str = ""
    """Compare these suites alone, with commas between."""
    against: str = ""
    """NAME of the row that differences are to; by default the base."""
    skill: list[str] | None = None
    """NAME=SUITE.COLUMN,...: columns that are one skill; repeat."""
    specialist: list[str] | None = None
    """SKILL=AGENT: who was trained for a skill; repeat."""
    paper: bool = False
    """Add the rows of the paper's own tables."""
    reference: list[str] | None = None
    """NAME or FILE.json: add rows that were published; repeat."""
    seed: int = 0
    """Of the draws of intervals and tests."""
