"""`agentmerge demo` as a newcomer runs it: no torch, no network, no knowledge of the paper."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from agentmerge import merge
from agentmerge.cli import main
from agentmerge.cli.demo import MINUTES, score_table
from agentmerge.demo.contest import MODELS, TASKS, Row
from agentmerge.demo.shipped import recipe
from agentmerge.eval.score import Score
from agentmerge.record import MergeRecord
from agentmerge.testing import make_agents

if TYPE_CHECKING:
    from pathlib import Path


def demo(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["agentmerge", "demo", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_demo_merges_and_says_what_to_look_at(monkeypatch, capsys, tmp_path: Path):
    out = tmp_path / "a folder" / "merged"
    out.parent.mkdir()
    assert demo(monkeypatch, "--out", out, "--no-scores") == 0
    told = capsys.readouterr().out
    for word in (
        "density",
        "unique",
        "code",
        "memory",
        "tool",
        "RAM+",
        "ram_plus_auto",
        f"agentmerge inspect '{out}'",
        "--base BASE",
    ):
        assert word in told
    record = json.loads((out / "merge_record.json").read_text())
    assert record["recipe"]["method"]["name"] == "ram_plus"
    assert (out / "tokenizer.json").exists()


def test_the_demo_can_be_run_twice_but_replaces_nothing_else(monkeypatch, capsys, tmp_path: Path):
    assert demo(monkeypatch, "--out", tmp_path / "out", "--no-scores", "--quiet") == 0
    assert demo(monkeypatch, "--out", tmp_path / "out", "--no-scores", "--quiet") == 0
    merge(recipe({"name": "ties"}), tmp_path / "other")
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "mine", tmp_path / "out", tmp_path / "other"):
        (folder / "thesis.txt").write_text("dear")
        assert demo(monkeypatch, "--out", folder, "--no-scores", "--quiet") == 2
        assert (folder / "thesis.txt").read_text() == "dear"
    (tmp_path / "other" / "thesis.txt").unlink()
    assert demo(monkeypatch, "--out", tmp_path / "other", "--no-scores", "--quiet") == 2
    assert capsys.readouterr().out == ""


def test_the_demo_does_not_replace_a_merge_of_other_agents(monkeypatch, capsys, tmp_path: Path):
    make_agents(tmp_path / "shipped")
    monkeypatch.setattr("agentmerge.demo.shipped.AGENTS", tmp_path / "shipped")
    for _ in range(2):
        assert demo(monkeypatch, "--no-scores", "--quiet", "--out", tmp_path / "out") == 0
    sources = make_agents(tmp_path / "mine", agents=2)
    merge(sources.recipe("ram"), tmp_path / "merged")
    assert demo(monkeypatch, "--no-scores", "--out", tmp_path / "merged") == 2
    assert "not empty" in capsys.readouterr().err
    assert set(MergeRecord.load(tmp_path / "merged").survey.agents) == set(sources.agents)


def test_for_machines_the_demo_is_the_record_and_the_scores(monkeypatch, capsys, tmp_path: Path):
    score = Score(dict.fromkeys(TASKS, (True, False)))
    monkeypatch.setattr(
        "agentmerge.cli.demo.contest", lambda quiet: [Row("RAM", "merge", {"dev": score, "test": score})] * MODELS
    )
    monkeypatch.setattr("agentmerge.eval.generate.available", lambda: True)
    assert demo(monkeypatch, "--out", tmp_path / "out", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["record"] == json.loads((tmp_path / "out" / "merge_record.json").read_text())
    shares = {str(task): 0.5 for task in TASKS}
    assert told["scores"] == [{"model": "RAM", "kind": "merge", "scores": {"dev": shares, "test": shares}}] * MODELS


def test_without_torch_the_demo_says_how_to_get_the_scores(monkeypatch, capsys, tmp_path: Path):
    monkeypatch.setattr("agentmerge.eval.generate.available", lambda: False)
    assert demo(monkeypatch, "--out", tmp_path / "out") == 0
    told = capsys.readouterr().out
    assert "python -m pip install -e '.[eval]' && agentmerge demo" in told
    assert "agentmerge[eval]" in told
    assert told.startswith("Takes a few seconds.")


def row_of(label: str) -> Row:
    score = Score(dict.fromkeys(TASKS, (True, False)))
    return Row(label, "merge", {"dev": score, "test": score})


@pytest.fixture
def scoring(monkeypatch) -> list[str]:
    """As if torch were installed, and a model scored at once; the models to score."""
    labels = [f"model {i}" for i in range(MODELS)]

    def rows(watch):
        for label in labels:
            watch(label)
            if label == "interrupt":
                raise KeyboardInterrupt
            yield row_of(label)

    monkeypatch.setattr("agentmerge.eval.generate.available", lambda: True)
    monkeypatch.setattr("agentmerge.cli.demo.rows", rows)
    return labels


@pytest.mark.usefixtures("scoring")
def test_the_first_line_says_how_long_it_takes_and_scoring_counts_to_an_end(monkeypatch, capsys, tmp_path: Path):
    assert demo(monkeypatch, "--out", tmp_path / "out") == 0
    told = capsys.readouterr()
    first = " ".join(told.out.split("\n\n")[0].split())
    assert first.startswith(f"Takes about {MINUTES} minutes, nearly all of it to score {MODELS} models")
    assert "Ctrl-C" in first
    lines = told.err.splitlines()
    assert lines[0] == f"scoring 1 of {MODELS}: model 0"
    assert lines[1].startswith(f"scoring 2 of {MODELS}: model 1, about ")
    assert lines[-1].startswith(f"scored {MODELS} models in ")
    assert len(lines) == MODELS + 1


def test_ctrl_c_while_it_scores_keeps_the_merge_and_says_so(monkeypatch, capsys, tmp_path: Path, scoring: list[str]):
    scoring[2] = "interrupt"
    assert demo(monkeypatch, "--out", tmp_path / "out") == 130
    told = capsys.readouterr()
    assert f"The merge in {tmp_path / 'out'} is whole; 2 of {MODELS} models were scored." in told.err
    assert "model 1" in told.out
    assert MergeRecord.load(tmp_path / "out").recipe["method"]["name"] == "ram_plus"
    scoring[0] = "interrupt"
    assert demo(monkeypatch, "--out", tmp_path / "out") == 130
    assert "Are the skills there" not in capsys.readouterr().out


def test_the_help_says_how_long_it_takes(monkeypatch, capsys):
    assert demo(monkeypatch, "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{MODELS} models are scored" in told
    assert f"about {MINUTES} minutes" in told


def test_the_score_table_has_a_row_per_model_and_a_column_per_sub_task():
    score = Score(dict.fromkeys(TASKS, (True, False)))
    table = score_table([Row("base", "base", {"test": score}), Row("RAM", "merge", {"test": score})], "test")
    assert table.row_count == 2
    assert len(table.columns) == len(TASKS) + 2
