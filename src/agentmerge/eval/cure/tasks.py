"""A task in CURE's format, as far as it is asked and tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = ("question", "test_input", "test_output", "example_input", "example_output")
"""Of every task; `test_time_limit` may stand beside them."""
SECONDS = 1.0
"""For a test, where a task does not say."""


@dataclass(frozen=True)
class CodeTask:
    """One of them."""

    question: str
    tests: tuple[tuple[str, str], ...]
    """Input and output."""
    examples: tuple[tuple[str, str], ...]
    seconds: float
    """For one test."""

    @classmethod
    def load(cls, row: Mapping[str, Any], place: str) -> CodeTask:
        """Read one.

        Args:
            row: as the file has it.
            place: where that is, for an error.

        Raises:
            EvalError: it is not in CURE's format.
        """
        if not isinstance(row["question"], str):
            raise EvalError(f"{place}: question is no text")
        seconds = row.get("test_time_limit", SECONDS)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
            raise EvalError(f"{place}: test_time_limit is {seconds!r}", expected="seconds, at most 3,600")
        return cls(row["question"], _pairs(row, "test", place), _pairs(row, "example", place), float(seconds))


def _pairs(row: Mapping[str, Any], kind: str, place: str) -> tuple[tuple[str, str], ...]:
    read, printed = row[f"{kind}_input"], row[f"{kind}_output"]
    for name, texts in (("input", read), ("output", printed)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise EvalError(
                f"{place}: {kind}_{name} is no list of texts", expected="standard input or output of a test"
            )
    if len(read) != len(printed):
        found = f"{place}: {kind}_input has {len(read)} texts, {kind}_output {len(printed)}"
        raise EvalError(found, expected="as many of both")
    return tuple(zip(read, printed, strict=True))
