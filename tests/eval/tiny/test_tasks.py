"""The samples of the demo are the same for the same seed, never meet across splits, and score as they should."""

from __future__ import annotations

import pytest

from agentmerge.eval.samples import SPLITS, Sample, split_of
from agentmerge.eval.tiny.domains.domain import LEVELS
from agentmerge.eval.tiny.tasks import DOMAINS, SUB_TASKS, SubTask

CODE, MATH, MEMORY, TOOL = (SubTask(name, "easy") for name in ("code", "math", "memory", "tool"))


def test_there_are_four_domains_of_two_levels() -> None:
    assert [str(task) for task in SUB_TASKS] == [f"{name} {level}" for name in DOMAINS for level in LEVELS]
    assert list(DOMAINS) == ["code", "math", "memory", "tool"]


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_the_same_seed_gives_the_same_samples(task: SubTask) -> None:
    assert task.samples("test", 50) == task.samples("test", 50)
    assert task.samples("test", 50) != task.samples("test", 50, seed=1)
    assert task.samples("test", 50)[:20] == task.samples("test", 20)


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_splits_never_share_a_prompt(task: SubTask) -> None:
    found = {split: {s.prompt for seed in range(2) for s in task.samples(split, 200, seed)} for split in SPLITS}
    assert not found["train"] & found["dev"]
    assert not found["train"] & found["test"]
    assert not found["dev"] & found["test"]
    assert all(split_of(prompt) == split for split, prompts in found.items() for prompt in prompts)


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_prompts_hardly_repeat(task: SubTask) -> None:
    drawn = [sample.prompt for seed in range(20) for sample in task.samples("train", 100, seed)]
    assert len(set(drawn)) > 0.8 * len(drawn)


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_the_right_answer_scores_one_and_half_unfinished(task: SubTask) -> None:
    for sample in task.samples("dev", 100):
        assert task.reward(sample, sample.answer) == 1
        assert task.reward(sample, sample.answer, finished=False) == 0.5


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_wrong_answers_never_earn_more_than_half(task: SubTask) -> None:
    asked = task.samples("dev", 60)
    wrong = [task.reward(a, b.answer) for a in asked for b in asked]
    assert all(value <= 0.5 or value == 1 for value in wrong)
    hostile = ("", "\0", "{" * 3000, "9" * 5000, "x" * 300, "None", "NaN", "[1]", '{"a":{"b":1}}')
    assert all(task.reward(asked[0], answer) <= 0.5 for answer in hostile)


def test_hard_memory_is_longer_than_any_training_prompt() -> None:
    hard = SubTask("memory", "hard")
    longest = max(len(s.prompt) for task in (MEMORY, hard) for s in task.samples("train", 500))
    assert min(len(s.prompt) for split in ("dev", "test") for s in hard.samples(split, 300)) > longest


def test_prompts_and_answers_are_plain_characters() -> None:
    for task in SUB_TASKS:
        for sample in task.samples("test", 100):
            assert (sample.prompt + sample.answer).replace("\n", "").isprintable()
            assert (sample.prompt + sample.answer).isascii()


def test_code_is_scored_by_what_it_does() -> None:
    sample = Sample("plus 1 then plus 2\n", "x.add(1).add(2)")
    assert CODE.reward(sample, "x.add(3)") == 1
    assert CODE.reward(sample, "x.add(2).add(1)") == 1
    assert CODE.reward(sample, "x.add(1).add(3)") == pytest.approx(0.1 + 0.3 / 2)
    assert CODE.reward(sample, "x.add(1).add(2") == 0


def test_a_call_is_scored_by_its_meaning() -> None:
    sample = Sample("zu(a,b) bo(c,d)\nbo 1 34\n", '{"bo":{"c":1,"d":34}}')
    assert TOOL.reward(sample, '{"bo": {"d": 34, "c": 1}}') == 1
    assert TOOL.reward(sample, '{"bo":{"c":1,"d":35}}') == pytest.approx(0.3)
    assert TOOL.reward(sample, '{"zu":{"c":1,"d":34}}') == pytest.approx(0.1)
    assert TOOL.reward(sample, '{"bo":{"c":true,"d":34}}') < 1
    assert TOOL.reward(sample, '{"bo":{"c":1.0,"d":34}}') < 1
    assert TOOL.reward(sample, '{"bo":{"c":1,"c":1,"d":34}}') < 1
    assert TOOL.reward(sample, '{"bo":{"c":1,"d":34}') == 0


def test_digits_in_their_places_earn_a_part() -> None:
    assert MATH.reward(Sample("4+7+1+1\n", "13"), "14") == pytest.approx(0.15)
    assert MATH.reward(Sample("4+7+1+1\n", "13"), "013") == 0
    assert MEMORY.reward(Sample("a17 b20 a", "17"), "27") == pytest.approx(0.15)
