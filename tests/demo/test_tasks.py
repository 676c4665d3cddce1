"""The samples of the demo are the same for the same seed, never meet across splits, and score as they should."""

from __future__ import annotations

import pytest

from agentmerge.demo.domains.sample import LEVELS, SPLITS, Sample, split_of
from agentmerge.demo.tasks import DOMAINS, SUB_TASKS, SubTask, reward, samples

CODE, MATH, MEMORY, TOOL = (SubTask(name, "easy") for name in ("code", "math", "memory", "tool"))


def test_there_are_four_domains_of_two_levels() -> None:
    assert [str(task) for task in SUB_TASKS] == [f"{name} {level}" for name in DOMAINS for level in LEVELS]
    assert list(DOMAINS) == ["code", "math", "memory", "tool"]


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_the_same_seed_gives_the_same_samples(task: SubTask) -> None:
    assert samples(task, "test", 50) == samples(task, "test", 50)
    assert samples(task, "test", 50) != samples(task, "test", 50, seed=1)
    assert samples(task, "test", 50)[:20] == samples(task, "test", 20)


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_splits_never_share_a_prompt(task: SubTask) -> None:
    found = {split: {s.prompt for seed in range(3) for s in samples(task, split, 300, seed)} for split in SPLITS}
    assert not found["train"] & found["dev"]
    assert not found["train"] & found["test"]
    assert not found["dev"] & found["test"]
    assert all(split_of(prompt) == split for split, prompts in found.items() for prompt in prompts)


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_prompts_hardly_repeat(task: SubTask) -> None:
    drawn = [sample.prompt for seed in range(20) for sample in samples(task, "train", 100, seed)]
    assert len(set(drawn)) > 0.8 * len(drawn)


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_the_right_answer_scores_one_and_half_unfinished(task: SubTask) -> None:
    for sample in samples(task, "dev", 100):
        assert reward(task, sample, sample.answer) == 1
        assert reward(task, sample, sample.answer, finished=False) == 0.5


@pytest.mark.parametrize("task", SUB_TASKS, ids=str)
def test_wrong_answers_never_earn_more_than_half(task: SubTask) -> None:
    asked = samples(task, "dev", 60)
    wrong = [reward(task, a, b.answer) for a in asked for b in asked]
    assert all(value <= 0.5 or value == 1 for value in wrong)
    hostile = ("", "\0", "{" * 3000, "9" * 5000, "x" * 300, "None", "NaN", "[1]", '{"a":{"b":1}}')
    assert all(reward(task, asked[0], answer) <= 0.5 for answer in hostile)


def test_hard_memory_is_longer_than_any_training_prompt() -> None:
    hard = SubTask("memory", "hard")
    longest = max(len(s.prompt) for task in (MEMORY, hard) for s in samples(task, "train", 500))
    assert min(len(s.prompt) for split in ("dev", "test") for s in samples(hard, split, 300)) > longest


def test_prompts_and_answers_are_plain_characters() -> None:
    for task in SUB_TASKS:
        for sample in samples(task, "test", 100):
            assert (sample.prompt + sample.answer).replace("\n", "").isprintable()
            assert (sample.prompt + sample.answer).isascii()


def test_code_is_scored_by_what_it_does() -> None:
    sample = Sample("plus 1 then plus 2\n", "x.add(1).add(2)")
    assert reward(CODE, sample, "x.add(3)") == 1
    assert reward(CODE, sample, "x.add(2).add(1)") == 1
    assert reward(CODE, sample, "x.add(1).add(3)") == pytest.approx(0.1 + 0.3 / 2)
    assert reward(CODE, sample, "x.add(1).add(2") == 0


def test_a_call_is_scored_by_its_meaning() -> None:
    sample = Sample("zu(a,b) bo(c,d)\nbo 1 34\n", '{"bo":{"c":1,"d":34}}')
    assert reward(TOOL, sample, '{"bo": {"d": 34, "c": 1}}') == 1
    assert reward(TOOL, sample, '{"bo":{"c":1,"d":35}}') == pytest.approx(0.3)
    assert reward(TOOL, sample, '{"zu":{"c":1,"d":34}}') == pytest.approx(0.1)
    assert reward(TOOL, sample, '{"bo":{"c":true,"d":34}}') < 1
    assert reward(TOOL, sample, '{"bo":{"c":1.0,"d":34}}') < 1
    assert reward(TOOL, sample, '{"bo":{"c":1,"c":1,"d":34}}') < 1
    assert reward(TOOL, sample, '{"bo":{"c":1,"d":34}') == 0


def test_digits_in_their_places_earn_a_part() -> None:
    assert reward(MATH, Sample("4+7+1+1\n", "13"), "14") == pytest.approx(0.15)
    assert reward(MATH, Sample("4+7+1+1\n", "13"), "013") == 0
    assert reward(MEMORY, Sample("a17 b20 a", "17"), "27") == pytest.approx(0.15)
