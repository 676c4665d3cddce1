"""The agents of experiments/agents_135m: its tasks, training on two layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "agents_135m"


def test_every_right_answer_is_judged_right_and_another_prompts_answer_is_not(experiment: Any) -> None:
    tasks = experiment("tasks")
    for name in tasks.SUB_TASKS:
        domain, level = name.split("/")
        task = tasks.DOMAINS[domain]
        samples = [tasks.draw(domain, level, "train", str(i)) for i in range(20)]
        for sample, other in pairwise(samples):
            assert task.judge(task.spell(sample.answer), sample.answer) == (1.0, True)
            verdict = task.judge(task.spell(other.answer), sample.answer)
            assert verdict.exact or verdict.reward <= 0.6
        assert sum(task.judge(task.spell(b.answer), a.answer).exact for a, b in pairwise(samples)) < 5


def test_a_prompt_belongs_to_one_split(experiment: Any) -> None:
    tasks = experiment("tasks")
    for domain in tasks.DOMAINS:
        drawn = {split: {tasks.draw(domain, "easy", split, str(i)).prompt for i in range(60)} for split in tasks.SPLITS}
        assert len(set.union(*drawn.values())) == sum(map(len, drawn.values()))


@pytest.mark.parametrize(
    ("domain", "answer", "text", "reward"),
    [
        ("math", 42, "42.", 1.0),
        ("math", 42, "The answer is 42", 0.4),
        ("math", 42, "41", 0.1),
        ("sort", ["1", "2", "3"], "1 3 2", pytest.approx(0.2 + 0.4 / 3)),
        ("memory", ["482", "917"], "482 and 917", 1.0),
        ("memory", ["482", "917"], "482 111", pytest.approx(0.1 + 0.2 + 0.05)),
        ("search", "Park Street", "It is on Park Street.", 0.4),
        ("search", "Park Street", "park street", 1.0),
        (
            "tool",
            {"name": "f", "arguments": {"a": 1}},
            '{"name": "f", "arguments": {"a": 1, "b": 2}}',
            pytest.approx(0.6),
        ),
        (
            "tool",
            {"name": "f", "arguments": {"a": 1}},
            '{"name": "f", "arguments": {"a": 1}} done',
            pytest.approx(0.55),
        ),
        ("tool", {"name": "f", "arguments": {"a": 1}}, "[1]", 0.0),
    ],
)
def test_partial_credit(experiment: Any, domain: str, answer: Any, text: str, reward: float) -> None:
    assert experiment("tasks").DOMAINS[domain].judge(text, answer).reward == reward


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, experiment: Any) -> Path:
    """A working folder after base and agents of seed 1, by the commands."""
    work = tmp_path_factory.mktemp("agents135m")
    run("package.py", "--tiny", "--out", str(work / "raw"))
    run("train.py", "--tiny", "--work", str(work), "--seed", "1", "--only", "math,format,sparse-memory,damaged")
    return work


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def flat(experiment: Any, folder: Path) -> Any:
    return experiment("files").read_weights(folder, "cpu")


@pytest.mark.slow
def test_agents_differ_from_their_base_where_they_may(trained: Path, experiment: Any) -> None:
    seed = trained / "seed1"
    base = flat(experiment, seed / "base").views
    for name in ("math", "math-1", "format", "damaged", "sparse-memory"):
        agent = flat(experiment, seed / "agents" / name).views
        moved = {key for key in base if not bool((base[key] == agent[key]).all())}
        assert moved
        if name == "sparse-memory":
            assert all(key.startswith("model.layers.0.") for key in moved)
    found = json.loads((seed / "damaged.json").read_text())
    assert found["domain"] == "math"
    assert [look["step"] for look in found["looks"]] == [1, 2]


@pytest.mark.slow
def test_what_is_done_is_skipped_and_times_and_prompts_are_kept(trained: Path) -> None:
    seed = trained / "seed1"
    before = (seed / "agents" / "math" / "model.safetensors").stat().st_mtime_ns
    run("train.py", "--tiny", "--work", str(trained), "--seed", "1", "--only", "math")
    assert (seed / "agents" / "math" / "model.safetensors").stat().st_mtime_ns == before
    times = json.loads((seed / "times.json").read_text())
    assert times["cold"]["gpu_seconds"] > 0
    assert times["agents"]["wall_seconds"] > 0
    lines = [json.loads(line) for line in (seed / "prompts.jsonl").read_text().splitlines()]
    assert len(lines) == 14
    assert all(line["prompt"].endswith("<|im_start|>assistant\n") for line in lines)


@pytest.mark.slow
def test_the_scorer_gives_the_same_bits_whatever_was_scored_before(trained: Path, experiment: Any) -> None:
    scoring = experiment("scoring")
    folders = [trained / "seed1" / "base", trained / "seed1" / "agents" / "format"]
    one, other = scoring.Scorer(trained, 1, "cpu", tiny=True), scoring.Scorer(trained, 1, "cpu", tiny=True)
    first = [one.score(folder, "test") for folder in folders]
    again = [other.score(folder, "test") for folder in reversed(folders)][::-1]
    assert list(first[0]) == experiment("tasks").SUB_TASKS
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(a[task], b[task]) and a[task].shape == (6,) for task in a)
    few = one.score(folders[0], "test", ["math"], count=2)
    assert {task: bits.tolist() for task, bits in few.items()} == {
        task: first[0][task][:2].tolist() for task in ("math/easy", "math/hard")
    }
