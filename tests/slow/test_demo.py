"""The shipped agents can do what their card says, and a merge has all their skills. Needs torch and transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import agentmerge
from agentmerge.demo.shipped import TRIO, folder, recipe
from agentmerge.demo.tasks import SUB_TASKS, samples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
COUNT = 256


def test_a_merge_beats_the_base_on_every_domain(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from agentmerge.demo.decode import Agent
    from agentmerge.demo.score import score

    agentmerge.merge(recipe({"name": "ram_plus"}), tmp_path / "merged")
    base = score(Agent.load(folder("base")), "test", COUNT)
    merged = score(Agent.load(tmp_path / "merged"), "test", COUNT)
    for domain in TRIO:
        tasks = [task for task in SUB_TASKS if task.domain == domain]
        gain = merged.mean(tasks) - base.mean(tasks)
        # The tool agent itself gained little more than the noise; the other two several standard errors.
        margin = 0.0 if domain == "tool" else 3 * merged.error(tasks, against=base)
        assert gain > margin, f"{domain}: {gain:.1%}"


def test_answers_do_not_depend_on_the_batch() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from agentmerge.demo.decode import Agent

    agent = Agent.load(folder("code"))
    prompts = [sample.prompt for task in SUB_TASKS for sample in samples(task, "test", 3)]
    together = agent.answers(prompts)
    assert sum(agent.answers([prompt])[0] == answer for prompt, answer in zip(prompts, together, strict=True)) >= 23
