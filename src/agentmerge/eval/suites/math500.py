"""Maths: 500 problems of the MATH data set, by lm-eval's minerva_math500."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from agentmerge.eval.data import Hub, Need
from agentmerge.eval.suite import Column
from agentmerge.eval.suites.lm_task import LmSettings, LmTask, rows_by_split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.eval.request import JSON

TEST = Need(
    "math500",
    "math500.jsonl",
    "HuggingFaceH4/MATH-500, split test",
    ("problem", "solution", "answer"),
    Hub("HuggingFaceH4/MATH-500", file="test.jsonl"),
)


class Math500Settings(LmSettings):
    """Of the suite `math500`."""

    max_tokens: int = Field(default=2048, ge=1)
    """New tokens; lm-eval's own 256 cut long thoughts off."""


class Math500(LmTask):
    """Four examples of lm-eval's own before each problem."""

    name = "math500"
    domain = "maths"
    settings_type = Math500Settings
    settings: Math500Settings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "lm-eval": {"chat": False, "max_tokens": 256}}
    metrics: ClassVar[Mapping[str, str]] = {"verify": "math_verify,none", "exact": "exact_match,none"}
    recipe = "minerva_math/minerva_math500.yaml"

    def needs(self) -> tuple[Need, ...]:
        """One file."""
        return (TEST,)

    def splits(self, config: Mapping[str, Any]) -> dict[str, list[dict[str, JSON]]]:
        """Test; a fourth field of a row is left to it."""
        fields = ("problem", "solution", "answer")
        return rows_by_split(config, [{name: row[name] for name in fields} for row in TEST.rows(self.given)])

    @property
    def columns(self) -> tuple[Column, ...]:
        """By math-verify, which knows equal expressions, and by Minerva's normalised match of the final answer."""
        return (
            Column("math500", "verify", "MATH500"),
            Column("math500_exact", "exact", "MATH500, Minerva's match", counts=False),
        )
