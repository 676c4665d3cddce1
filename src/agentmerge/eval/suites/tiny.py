"""The tasks of the tiny agents that come with the package: a check of the whole chain that needs no data."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from pydantic import Field

from agentmerge._version import __version__
from agentmerge.errors import Problem, did_you_mean
from agentmerge.eval.request import Request
from agentmerge.eval.samples import Sample, Split
from agentmerge.eval.suite import Cell, Column, DataFile, Item, SampledSettings, Suite
from agentmerge.eval.tiny.tasks import DOMAINS, SUB_TASKS, SubTask

if TYPE_CHECKING:
    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Conversation

TASKS = {str(task): task for task in SUB_TASKS}


class TinySettings(SampledSettings):
    """Of the suite `tiny`."""

    max_tokens: int = Field(default=32, ge=1)
    """Of the tasks the longest right answer has 29 with its end."""
    split: Split = "test"
    """Which prompts: dev is for choosing settings, test for the table."""
    count: int = Field(default=256, ge=1)
    """Prompts of a sub-task."""
    domains: tuple[str, ...] = ("code", "memory", "tool")
    """Whose sub-tasks; math is the fourth of them."""


class Tiny(Suite):
    """Sub-tasks in two levels for each domain, exact match."""

    name = "tiny"
    domain = "demo"
    settings_type = TinySettings
    settings: TinySettings

    def requires(self) -> list[Problem]:
        """Nothing but domains that there are."""
        unknown = [name for name in self.settings.domains if name not in DOMAINS]
        return [Problem(f"tiny.domains: no '{name}'", todo=did_you_mean(name, DOMAINS).strip()) for name in unknown]

    def items(self) -> list[Item]:
        """The same prompts for the same count; fewer are their beginning."""
        return [
            Item(f"{task} {number}", str(task), {"prompt": sample.prompt, "answer": sample.answer})
            for task in self.tasks
            for number, sample in enumerate(task.samples(self.settings.split, self.settings.count))
        ]

    def converse(self, item: Item) -> Conversation:
        """One greedy answer; the output says whether it ended."""
        (response,) = yield [Request.raw(item.data["prompt"], self.settings.sampling())]
        return {"text": response.text, "finished": response.finished}

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """1 for a right answer that ended."""
        sample = Sample(**item.data)
        reward = TASKS[item.group].reward(sample, output["text"], finished=output["finished"])
        return {"exact": Cell(float(reward == 1))}

    @property
    def tasks(self) -> tuple[SubTask, ...]:
        """Those of the wanted domains."""
        return tuple(task for task in SUB_TASKS if task.domain in self.settings.domains)

    @property
    def columns(self) -> tuple[Column, ...]:
        """One for each sub-task, and their plain mean."""
        own = [Column(str(task).replace(" ", "_"), "exact", str(task), (str(task),)) for task in self.tasks]
        return (*own, Column("average", "exact", "average", combine="groups"))

    def data_files(self) -> list[DataFile]:
        """None is read: the prompts are made."""
        items = self.items()
        made = json.dumps([item.data for item in items]).encode()
        return [DataFile("prompts", f"made by agentmerge {__version__}", hashlib.sha256(made).hexdigest(), len(items))]
