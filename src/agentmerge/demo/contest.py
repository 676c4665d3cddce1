"""Score the base, the shipped agents and every method on the same prompts."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.api import merge
from agentmerge.demo.shipped import TRIO, folder, recipe
from agentmerge.eval.generate import BATCH
from agentmerge.eval.generators.hf import Transformers
from agentmerge.eval.run import scored
from agentmerge.eval.score import Score
from agentmerge.eval.suites.tiny import Tiny
from agentmerge.eval.tiny.tasks import SUB_TASKS, SubTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentmerge.eval.samples import Split
    from agentmerge.eval.suite import Suite

COUNT: dict[Split, int] = {"dev": 128, "test": 256}
"""Prompts of a sub-task."""
TASKS = tuple(task for task in SUB_TASKS if task.domain in TRIO)


@dataclass(frozen=True)
class Entrant:
    """One row of the table that is a merge."""

    label: str
    method: dict[str, Any]
    rounding: str = "nearest"


METHODS = (
    Entrant("Task Arithmetic, 1/3", {"name": "task_arithmetic"}),
    Entrant("Task Arithmetic, 1.0", {"name": "task_arithmetic", "scale": 1.0}),
    Entrant("TIES", {"name": "ties"}),
    Entrant("DARE + Task Arithmetic", {"name": "dare"}),
    Entrant("WUDI", {"name": "wudi"}),
    Entrant("RAM", {"name": "ram"}),
    Entrant("RAM+", {"name": "ram_plus"}),
    Entrant("RAM+s", {"name": "ram_plus_soft"}),
    Entrant("RAM+, stochastic", {"name": "ram_plus"}, "stochastic"),
    Entrant("RAM+ auto, stochastic", {"name": "ram_plus_auto"}, "stochastic"),
)
"""Each with its usual settings; none was chosen by a score here. Fisher needs importance, which is not shipped."""
MODELS = 1 + len(TRIO) + len(METHODS)
"""The base, the agents and the merges."""


@dataclass(frozen=True)
class Row:
    """One model of the table."""

    label: str
    kind: str
    """base, agent or merge."""
    scores: dict[Split, Score[SubTask]]


def rows(methods: tuple[Entrant, ...] = METHODS, *, watch: Callable[[str], None] | None = None) -> Iterator[Row]:
    """Base, agents and merges in this order, each as soon as it is scored.

    Raises:
        MergeError: torch or transformers is not installed.
    """
    say = watch or (lambda _: None)
    for name in ("base", *TRIO):
        say(name)
        yield Row(name, "base" if name == "base" else "agent", scores_of(folder(name)))
    with tempfile.TemporaryDirectory() as scratch:
        for number, entrant in enumerate(methods):
            say(entrant.label)
            out = Path(scratch) / str(number)
            merge(recipe(entrant.method, rounding=entrant.rounding), out)
            yield Row(entrant.label, "merge", scores_of(out))


def scores_of(checkpoint: Path) -> dict[Split, Score[SubTask]]:
    """A checkpoint's answers on dev and test, by the suite that `agentmerge eval --suites tiny` runs."""
    model = Transformers(str(checkpoint), threads=1, batch=BATCH)
    return {split: _score(Tiny.make(split=split, count=count, domains=TRIO), model) for split, count in COUNT.items()}


def _score(suite: Suite, model: Transformers) -> Score[SubTask]:
    marked = [(item.group, cells["exact"].value == 1) for item, cells in scored(suite, model)]
    return Score({task: tuple(right for group, right in marked if group == str(task)) for task in TASKS})
