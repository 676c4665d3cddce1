"""How far an evaluation is, as a job's log tells it."""

from __future__ import annotations

import pytest

from agentmerge.cli import eval_progress
from agentmerge.cli.eval_progress import Shown, duration
from agentmerge.eval.request import Response


def test_a_log_gets_a_line_now_and_then_with_pace_and_time_left(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(eval_progress, "monotonic", lambda: clock[0])
    with Shown() as shown:
        shown.asking("gsm8k", 1, 5, 100)
        for _ in range(30):
            clock[0] += 1
            shown.answered(Response("a", True, tokens=20))
        shown.scoring("gsm8k", 105)
    assert capsys.readouterr().err.splitlines() == [
        "gsm8k: 100 requests, 5 are answered already",
        "gsm8k: 10 of 100 requests, 1.0 requests/s, 20 tokens/s, 1:30 left",
        "gsm8k: 20 of 100 requests, 1.0 requests/s, 20 tokens/s, 1:20 left",
        "gsm8k: 30 of 100 requests, 1.0 requests/s, 20 tokens/s, 1:10 left",
        "gsm8k: scoring 105 items",
    ]


@pytest.mark.parametrize(("texts", "told"), [([""] * 9, 1), ([""] * 7 + ["a"], 0), (["a", *[""] * 20], 0)])
def test_answers_that_are_all_empty_are_told_at_once(capsys, texts, told):
    with Shown() as shown:
        shown.asking("jsonl", 1, 0, len(texts))
        for text in texts:
            shown.answered(Response(text, True, aside="" if text else "reasoning"))
    said = [line for line in capsys.readouterr().err.splitlines() if "empty" in line]
    line = "jsonl: the first 8 answers are all empty; the server sends what is generated as reasoning"
    assert said == [line] * told


def test_of_waits_that_overlap_the_first_is_told_and_whatever_outlasts_it(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(eval_progress, "monotonic", lambda: clock[0])
    with Shown() as shown:
        for now, seconds in ((0, 2), (0, 2), (1, 90), (2, 90), (50, 30), (91, 90)):
            clock[0] = float(now)
            shown.waiting(f"from {now} for {seconds}", seconds)
    assert [line.removeprefix(": ") for line in capsys.readouterr().err.splitlines()] == [
        "from 0 for 2", "from 1 for 90", "from 91 for 90",
    ]  # fmt: skip


def test_quiet_is_quiet(capsys):
    with Shown(quiet=True) as shown:
        shown.asking("a", 1, 0, 1)
        shown.answered(Response("", True))
        shown.scoring("a", 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_a_duration_is_said_as_on_a_clock(seconds, said):
    assert duration(seconds) == said
