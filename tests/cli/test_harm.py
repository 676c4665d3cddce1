"""`agentmerge harm`: what is wrong is told in one message, with exit code 2, before torch is needed."""

import json
import sys

import pytest

from agentmerge.cli.harm import tables
from agentmerge.harm.record import HarmRecord, SkillRow
from agentmerge.harm.remedies import together
from agentmerge.harm.verdict import judge
from agentmerge.importance.record import Settings
from tests.cli.test_importance import Missing
from tests.harm.test_remedies import MLP, PLACES, Remedy
from tests.harm.test_remedies import row as remedy
from tests.harm.test_verdict import BROKEN, row


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "a", "skill": "code"}) + "\n")
    return path


@pytest.fixture
def record():
    rows, remedies = [BROKEN, row(skill="math", own=True), row(agent="y")], [remedy("*.mlp.*")]
    return HarmRecord(
        base="base",
        agents=["x", "y"],
        data="prompts.jsonl",
        sha256="0",
        limit=0.5,
        beyond=2.0,
        settings=Settings(max_length=9, chat=False, device="cpu", dtype="float32"),
        skills=[SkillRow(skill="tool", prompts=9, tokens=99, given=0, likelihood=-0.1, owners=[])],
        lengths={"x": 2.0, "y": 1.0},
        rows=rows,
        places=[],
        remedies=remedies,
        verdict=judge(rows, remedies, 0.5),
        change=together({"x": Remedy(skipped=frozenset(MLP))}, PLACES),
        versions={},
        warnings=[],
    )


def test_it_has_help(run):
    ran = run("harm", "--help")
    assert (ran.code, "--prompts" in ran.out, "--write-recipe" in ran.out, "--limit" in ran.out) == (0, *[True] * 3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--examples", "1"], "harm: examples"),
        (["--limit", "-1"], "harm: limit"),
        (["--limit", "nan"], "harm: limit"),
        (["--batch-tokens", "0"], "harm: batch_tokens"),
        (["--own", "code"], "expected AGENT=SKILL"),
        (["--own", "code=maths"], "no skill 'maths'"),
        (["--out", "{folder}/none/x.json"], "there is no folder"),
        (["--write-recipe", "{agents}/base/config.json"], "config.json"),
        (["--out", "{folder}/prompts.jsonl"], "the data"),
    ],
)
def test_what_is_wrong_with_the_options_is_told(run, agents, sources, data, tmp_path, options, told):
    given = [option.format(folder=tmp_path, agents=agents) for option in options]
    ran = run("harm", *sources, "--prompts", str(data), *given)
    assert (ran.code, told in ran.err) == (2, True), ran.err


def test_what_is_wrong_with_the_prompts_is_told(run, sources, data, tmp_path):
    assert run("harm", *sources).code == 2
    ran = run("harm", *sources, "--prompts", str(tmp_path / "none"))
    assert (ran.code, "no such data file" in ran.err) == (2, True)
    data.write_text('{"skill": "code"}\n')
    ran = run("harm", *sources, "--prompts", str(data))
    assert (ran.code, f"{data}:1: no prompt" in ran.err) == (2, True)


def test_without_its_extra_it_says_what_to_install(run, sources, data, monkeypatch):
    for module in [word for word in sys.modules if word.split(".")[0] == "torch" or word == "agentmerge.harm.model"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("agentmerge.harm.model", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing("torch"), *sys.meta_path])
    ran = run("harm", *sources, "--prompts", str(data))
    assert ran.code == 2
    assert "pip install 'agentmerge[importance]'" in ran.err


def test_a_record_is_told_and_read_back(record, tmp_path):
    table, verdict = tables(record)
    assert any("HARM" in line and "3.200" in line for line in table.lines(100))
    assert any("own" in line for line in table.lines(100))
    assert verdict.startswith("- x broke")
    record.save(tmp_path / "harm.json")
    assert HarmRecord.load(tmp_path / "harm.json") == record
    assert record.harmful == ["x"]
