"""Instructions: IFEval, whose every instruction a program checks, by lm-eval."""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentmerge.errors import Problem
from agentmerge.eval.data import Hub, Need
from agentmerge.eval.suite import Column
from agentmerge.eval.suites.lm_task import LmSettings, LmTask, rows_by_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.eval.request import JSON

DATA = Need(
    "ifeval",
    "ifeval.jsonl",
    "google/IFEval, split train",
    ("key", "prompt", "instruction_id_list", "kwargs"),
    Hub("google/IFEval", split="train", file="ifeval_input_data.jsonl"),
)
BY_SENTENCES = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}
"""Instructions whose checkers need nltk's data."""
PUNKT = "tokenizers/punkt_tab/english"
"""Those data, where nltk looks for them."""


class IfevalSettings(LmSettings):
    """Of the suite `ifeval`."""

    max_tokens: int = Field(default=1280, ge=1)
    """New tokens, lm-eval's own."""
    without_punkt: Literal["stop", "leave_out"] = "stop"
    """Where nltk's punkt_tab is not there, which two kinds of instructions need: stop, or leave their prompts out."""


class Ifeval(LmTask):
    """541 prompts with one to three instructions each."""

    name = "ifeval"
    domain = "instructions"
    settings_type = IfevalSettings
    settings: IfevalSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "lm-eval": {"chat": False}}
    metrics: ClassVar[Mapping[str, str]] = {
        "prompt_strict": "prompt_level_strict_acc,none",
        "inst_strict": "inst_level_strict_acc,none",
        "prompt_loose": "prompt_level_loose_acc,none",
        "inst_loose": "inst_level_loose_acc,none",
    }
    recipe = "ifeval/ifeval.yaml"

    def requires(self) -> list[Problem]:
        """lm-eval, the data and nltk's data."""
        found = super().requires()
        if self.settings.without_punkt == "stop" and find_spec("nltk") is not None and not has_punkt():
            found.append(
                Problem(
                    f"ifeval: nltk's data {PUNKT} is not there",
                    todo="Run `python -m nltk.downloader punkt_tab` where the network can be reached and put the "
                    "folder where NLTK_DATA points, or say --set ifeval.without_punkt=leave_out.",
                )
            )
        return found

    def needs(self) -> tuple[Need, ...]:
        """One file."""
        return (DATA,)

    def splits(self, config: Mapping[str, Any]) -> dict[str, list[dict[str, JSON]]]:
        """All prompts, or those whose checkers can run."""
        rows = DATA.rows(self.given)
        if not has_punkt():
            rows = [row for row in rows if not BY_SENTENCES & set(row["instruction_id_list"])]
        return rows_by_split(config, [{name: row[name] for name in DATA.fields} for row in rows])

    def id_of(self, number: int, doc: Mapping[str, Any]) -> str:
        """Its key."""
        return str(doc["key"])

    def _config(self) -> dict[str, Any]:
        with no_download():
            config = super()._config()
        import_module("langdetect").DetectorFactory.seed = 0  # else it guesses otherwise each time
        return config

    @property
    def columns(self) -> tuple[Column, ...]:
        """Prompts all of whose instructions are followed, and instructions that are; loosely after small repairs."""
        return (
            Column("prompt_strict", "prompt_strict", "IFEval prompt, strict"),
            Column("inst_strict", "inst_strict", "IFEval instruction, strict"),
            Column("prompt_loose", "prompt_loose", "IFEval prompt, loose"),
            Column("inst_loose", "inst_loose", "IFEval instruction, loose"),
        )


def has_punkt() -> bool:
    """Whether nltk's sentence tokenizer can be loaded."""
    try:
        import_module("nltk").data.find(PUNKT)
    except (LookupError, ImportError):
        return False
    return True


@contextmanager
def no_download() -> Iterator[None]:
    """lm-eval fetches nltk's data when its checkers are imported, but for processes of a rank other than 0."""
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
        else:
            os.environ["LOCAL_RANK"] = before
