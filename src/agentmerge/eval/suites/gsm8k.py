"""Maths: GSM8K's word problems, by lm-eval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentmerge.eval.data import Hub, Need
from agentmerge.eval.suite import Column
from agentmerge.eval.suites.lm_task import LmSettings, LmTask, rows_by_split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.eval.request import JSON

FIELDS = ("question", "answer")
TEST = Need(
    "gsm8k", "gsm8k_test.jsonl", "openai/gsm8k, configuration main, split test", FIELDS, Hub("openai/gsm8k", "main")
)
TRAIN = Need(
    "gsm8k",
    "gsm8k_train.jsonl",
    "openai/gsm8k, configuration main, split train",
    FIELDS,
    Hub("openai/gsm8k", "main", "train"),
)


class Gsm8kSettings(LmSettings):
    """Of the suite `gsm8k`."""

    max_tokens: int = Field(default=1024, ge=1)
    """New tokens; the paper says nothing of it, and lm-eval's own 256 cut long thoughts off."""
    task: Literal["gsm8k", "gsm8k_cot", "gsm8k_cot_llama", "gsm8k_cot_zeroshot"] = "gsm8k"
    """Which of lm-eval's: with examples of the train split (5), with its own eight (cot, cot_llama), or none."""


class Gsm8k(LmTask):
    """1,319 problems; exact match of the last number."""

    name = "gsm8k"
    domain = "maths"
    settings_type = Gsm8kSettings
    settings: Gsm8kSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "lm-eval": {"chat": False, "max_tokens": 256}}
    metrics: ClassVar[Mapping[str, str]] = {
        "strict": "exact_match,strict-match",
        "flexible": "exact_match,flexible-extract",
    }

    @property
    def recipe(self) -> str:
        """Its file."""
        return f"gsm8k/{self.settings.task.replace('_', '-')}.yaml"

    def needs(self) -> tuple[Need, ...]:
        """The train split only where examples come from it."""
        return (TEST, TRAIN) if self._draws_examples else (TEST,)

    def splits(self, config: Mapping[str, Any]) -> dict[str, list[dict[str, JSON]]]:
        """Test, and train where examples come from it."""
        train = TRAIN.rows(self.given) if self._draws_examples else []
        return rows_by_split(config, TEST.rows(self.given), train)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The number behind "####" (or "The answer is"), and the last number anywhere."""
        return (
            Column("gsm8k", "strict", "GSM8K"),
            Column("gsm8k_flexible", "flexible", "GSM8K, last number", counts=False),
        )

    @property
    def _draws_examples(self) -> bool:
        return self.settings.task == "gsm8k" and self.settings.shots != 0
