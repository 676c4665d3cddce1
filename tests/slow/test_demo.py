"""The shipped agents can do what their card says, and a merge has all their skills. Needs torch and transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import agentmerge
from agentmerge.demo.shipped import TRIO, folder, recipe
from agentmerge.eval.tiny.tasks import SUB_TASKS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
COUNT = 256


def test_a_merge_beats_the_base_on_every_domain(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from agentmerge.eval.generate import LanguageModel
    from agentmerge.eval.score import score

    agentmerge.merge(recipe({"name": "ram_plus"}), tmp_path / "merged")
    base = score(LanguageModel.load(folder("base")), SUB_TASKS, "test", COUNT)
    merged = score(LanguageModel.load(tmp_path / "merged"), SUB_TASKS, "test", COUNT)
    for domain in TRIO:
        tasks = [task for task in SUB_TASKS if task.domain == domain]
        gain = merged.mean(tasks) - base.mean(tasks)
        # The tool agent itself gained little more than the noise; the other two several standard errors.
        margin = 0.0 if domain == "tool" else 3 * merged.error(tasks, against=base)
        assert gain > margin, f"{domain}: {gain:.1%}"


def test_answers_do_not_depend_on_the_batch() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from agentmerge.eval.generate import LanguageModel

    model = LanguageModel.load(folder("code"))
    prompts = [sample.prompt for task in SUB_TASKS for sample in task.samples("test", 3)]
    together = model.answers(prompts)
    assert sum(model.answers([prompt])[0] == answer for prompt, answer in zip(prompts, together, strict=True)) >= 23
