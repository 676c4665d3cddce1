"""`agentmerge eval compare`, from folders to what is printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentmerge.eval.record import ColumnFacts, EvalRecord, ModelFacts, SuiteFacts, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Ran

    Run = Callable[..., Ran]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Evaluations of base, tool and ram in one suite of 100 items."""
    for name, right in (("base", 30), ("tool", 80), ("ram", 70)):
        scores = [
            {"suite": "bfcl", "item": str(i), "group": "", "metrics": {"ok": [float(i < right), 1.0]}}
            for i in range(100)
        ]
        (tmp_path / name / "bfcl").mkdir(parents=True)
        (tmp_path / name / "bfcl" / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scores))
        facts = {"method": {"name": "ram"}, "seconds": 1.5, "agents": {}} if name == "ram" else None
        column = ColumnFacts(
            n=100, mean=right / 100, error=0.05, interval=(0.0, 1.0), interval_from="wilson", label="BFCL", metric="ok"
        )
        suite = SuiteFacts(
            domain="tool", preset="paper", settings={}, data=[], items=100, columns={"bfcl": column}, requests=0,
            tokens=Tokens(prompt=None, generated=None), cut_off=0, seconds=0,
        )  # fmt: skip
        model = ModelFacts(name=name, path=None, generator={}, merge=facts)
        EvalRecord(versions={}, model=model, suites={"bfcl": suite}).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_and_verdict_for_people(folders: Path, run: Run) -> None:
    ran = run("eval", "compare", "base", "tool", "ram")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "Scores in %, with standard errors"
    assert any(line.split() == ["ram", "70.0", "+-", "4.6", "70.0", "+-", "4.6", "1.5"] for line in lines)
    assert any(line.startswith("- ram keeps of what the agents gained: 80% (") for line in lines)
    assert all(len(line) <= 110 for line in lines)


@pytest.mark.parametrize(
    ("form", "begin"), [("markdown", "**best**"), ("latex", "% \\textbf"), ("csv", "row,role,unit")]
)
def test_other_formats(folders: Path, run: Run, form: str, begin: str) -> None:
    ran = run("eval", "compare", "--base", "base", "--agent", "tool=tool", "--merged", "RAM=ram", "--format", form)
    assert ran.code == 0
    assert ran.out.startswith(begin)
    assert "RAM" in ran.out


def test_json_is_the_comparison(folders: Path, run: Run) -> None:
    ran = run("eval", "compare", "base", "tool", "ram", "--json", "--paper", "--seed", "3")
    found = json.loads(ran.out)
    assert found["format"] == "agentmerge.comparison/1"
    assert [model["role"] for model in found["models"]] == ["base", "agent", "merged"]
    assert found["settings"]["seed"] == 3
    assert found["references"][0]["source"] == "ram"
    assert "warning: ram: Of Table 1 only the mean of the base" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["base", "nothing"], "nothing: holds no eval_record.json"),
        (["--agent", "tool"], "--agent tool: not understood, expected NAME=VALUE"),
        (["base", "tool", "--suites", "bfc"], "--suites: no suite 'bfc'. Did you mean 'bfcl'?"),
        (["base", "tool", "--skill", "a=bfcl.x"], "--skill: no column 'bfcl.x'. Did you mean 'bfcl.bfcl'?"),
        ([], "nothing to compare"),
    ],
)
def test_mistakes_are_told_calmly(folders: Path, run: Run, arguments: list[str], told: str) -> None:
    ran = run("eval", "compare", *arguments)
    assert ran.code == 2
    assert told in ran.err
    assert "Traceback" not in ran.err
