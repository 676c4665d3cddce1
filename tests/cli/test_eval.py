"""`agentmerge eval` and its sister commands, as a user runs them against a server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from agentmerge.eval.request import Response
from agentmerge.eval.tiny.tasks import SUB_TASKS
from tests.eval.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = {sample.prompt: sample.answer for task in SUB_TASKS for sample in task.samples("test", 4)}
SMALL = ["--suites", "tiny", "--set", "tiny.count=4"]


@pytest.fixture
def server():
    with serving(lambda request: Response(RIGHT[request.prompt], True, 5, 3)) as served:
        yield served


def test_a_model_behind_a_server_is_scored_and_the_same_command_resumes(run, server, tmp_path: Path):
    out = tmp_path / "out"
    command = ["eval", "served", *SMALL, "--server", server.url, "--out", str(out)]
    ran = run(*command)
    assert ran.code == 0, ran.err
    assert "24 requests" in ran.err
    assert "average" in ran.out
    assert "100.0" in ran.out
    assert "max_tokens 32" in ran.out
    assert run(*command).code == 0
    assert len(server.asked) == 24
    again = run(*command, "--json", "--quiet")
    assert again.err == ""
    facts = json.loads(again.out)["suites"]["tiny"]
    assert facts["columns"]["average"]["mean"] == 1
    assert facts["tokens"] == {"prompt": 120, "generated": 72}
    assert json.loads((out / "eval_record.json").read_text()) == json.loads(again.out)
    assert run("eval", "served", *SMALL, "--score-only", "--out", str(out)).code == 0


NOTHING = {"message": {"role": "assistant", "content": None, "reasoning_content": "it is 4"}, "finish_reason": "stop"}


def test_a_server_that_puts_the_answer_elsewhere_is_told_by_eval_and_by_compare(run, tmp_path: Path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text('{"prompt": "2+2?", "answer": "4"}\n{"prompt": "1+3?", "answer": "4"}\n')
    with serving(lambda request: {"choices": [NOTHING], "usage": {"completion_tokens": 9}}) as served:
        command = ["eval", "served", "--suites", "jsonl", "--set", f"jsonl.file={prompts}", "--out", str(out)]
        first = run(*command, "--server", served.url)
        again = run(*command, "--server", served.url)
        assert len(served.asked) == 2
    text = (
        "jsonl: 2 of 2 answers are empty although 18 tokens were generated for them, and count as no answer. The "
        "server sent what was generated as reasoning_content (2), which is not scored. If that is the answer, serve "
        "the model without a reasoning parser"
    )
    for ran in (first, again, run(*command, "--score-only")):
        assert ran.code == 0
        assert f"warning: {text}" in ran.err
        assert "2 empty ones" in " ".join(ran.out.split())
    assert "warning" not in run(*command, "--score-only", "--quiet").err
    compared = json.loads(run("eval", "compare", str(out), "--json").out)
    assert compared["verdict"][0]["rule"] == "empty"
    assert compared["verdict"][0]["units"] == ["jsonl.jsonl"]
    assert compared["verdict"][0]["text"].startswith(f"out in {text}")


def test_a_plan_says_what_it_costs_and_asks_nobody(run):
    ran = run("eval", "any", *SMALL, "--plan")
    assert ran.code == 0
    assert "Four characters are taken for a token" in ran.out
    plan = json.loads(run("eval", "any", *SMALL, "--plan", "--json").out)["tiny"]
    assert (plan["items"], plan["turns"], plan["requests"], plan["most_new_tokens"]) == (24, 1, 24, 24 * 32)
    assert plan["settings"]["split"] == "test"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", *SMALL], "no --out is given"),
        (["nowhere", *SMALL, "--out", "o"], "expected a checkpoint's folder, or the name of a model"),
        (["nowhere", "--suites", "jsonl", "--plan"], "--set jsonl.file=PROMPTS.jsonl"),
        (["doctro", *SMALL], "no --out is given"),
    ],
)
def test_a_mistake_is_one_calm_message(run, words, said):
    ran = run("eval", *words)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_the_doctor_says_what_is_missing_and_how_to_get_it(run, tmp_path: Path):
    found = json.loads(run("eval", "doctor", "--json").out)
    assert found["suites"]["tiny"]["problems"] == []
    assert "PROMPTS.jsonl" in found["suites"]["jsonl"]["problems"][0]
    text = " ".join(run("eval", "doctor", "--data-dir", str(tmp_path)).out.split())
    assert re.search(
        "tiny (domain )?demo (state )?ready; presets paper", text
    )  # in columns, or in lines where it is long


def test_what_the_hub_does_not_have_is_told(run, tmp_path: Path):
    ran = run("eval", "fetch", "tiny", "--data-dir", str(tmp_path))
    assert ran.code == 2
    assert "tiny: nothing of it is on the hub" in ran.err


def test_data_of_the_hub_are_put_where_the_suite_looks(run, monkeypatch, tmp_path: Path):
    row = {"key": 1, "prompt": "p", "instruction_id_list": [], "kwargs": []}
    (tmp_path / "cached").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr("agentmerge.eval.fetch._file", lambda hub: tmp_path / "cached")
    ran = run("eval", "fetch", "ifeval", "--data-dir", str(tmp_path / "data"))
    assert ran.code == 0, ran.err
    assert "ifeval.jsonl: 1 items, sha256 " in ran.out
    assert json.loads((tmp_path / "data/ifeval.jsonl").read_text()) == row


def test_a_hub_that_cannot_be_reached_leaves_nothing_half(run, monkeypatch, tmp_path: Path):
    def fails(hub):
        raise OSError("no route to host\nmany more lines")

    monkeypatch.setattr("agentmerge.eval.fetch._file", fails)
    ran = run("eval", "fetch", "ifeval", "--data-dir", str(tmp_path / "data"))
    assert ran.code == 2
    assert "can't be fetched: no route to host" in ran.err
    assert "put it in the data folder as ifeval.jsonl" in " ".join(ran.err.split())
    assert list((tmp_path / "data").iterdir()) == []
