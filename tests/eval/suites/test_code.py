"""The suite `code` from prompts to columns, on tasks small enough to be done by hand."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.execution import pool
from agentmerge.eval.fetch import fetch
from agentmerge.eval.generators.replay import Scripted
from agentmerge.eval.plan import plan_all
from agentmerge.eval.run import Job, evaluate
from agentmerge.eval.suite import Given
from agentmerge.eval.suites.code import Code
from agentmerge.eval.suites.code_settings import SETS

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.eval.record import EvalRecord
    from agentmerge.eval.request import Request

TASKS = [
    {"question": "Print twice the number.", "test_input": ["1\n", "2\n", "3\n"], "test_output": ["2", "4", "6"]},
    {"question": "Print the sum.", "test_input": ["1 2\n", "3 4\n"], "test_output": ["3", "7"]},
    {"question": "Print the longest word.", "test_input": ["a bc\n"], "test_output": ["bc"]},
    {"question": "Print what was never tested.", "test_input": [], "test_output": []},
]
ANSWERS = {
    "twice": ["print(int(input()) + 1)", "print(2 * int(input()))", "print(4)", None],
    "sum": ["print(sum(map(int, input().split())))"] * 3 + ["print(3)"],
    "longest": ["print('bc')", "print(input())", "print(", "print(0)"],
    "never": ["print(1)"] * 4,
}
CASES = {
    "twice": [("5", "10"), ("2", "3"), None, ("0", "0")],  # the second is wrong
    "sum": [None, None, None, None],
    "longest": [("x", "x"), ("a b", "a"), ("q", "bc"), ("z z", "z z")],
    "never": [("1", "1")] * 4,
}


def answer(request: Request) -> str:
    """What a model might say to a request of the suite."""
    (word,) = re.findall(r"problem:\nPrint (?:the |what was )?(\w+)", request.text)
    if "new test example" not in request.text:
        code = ANSWERS[word][request.sample]
        return "I do not know." if code is None else f"So:\n```python\n{code}\n```"
    case = CASES[word][request.sample]
    return "Hm." if case is None else f"**Test Input:**\n```\n{case[0]}```\n**Test Output:**\n```\n{case[1]}```"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{**row, "example_input": [], "example_output": [], "test_time_limit": 5} for row in TASKS]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "Own.json").write_text(json.dumps(rows, indent=2))
    return tmp_path / "data"


def suite(data: Path, preset: str = "paper", *, allowed: bool = True, **settings: Any) -> Code:
    found = Code.make(preset, Given(data, None, allowed), sets=("Own",), **{"executor": "script", **settings})
    assert isinstance(found, Code)
    return found


def run(found: Code, out: Path) -> EvalRecord:
    return evaluate("m", [Job(found)], Scripted(answer), out)


def means(record: EvalRecord) -> dict[str, float | None]:
    return {name.removeprefix("own_"): column.mean for name, column in record.suites["code"].columns.items()}


def test_columns_by_hand_and_scoring_goes_on_where_it_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(suite(data, skip="never"), tmp_path / "out")
    # twice: of 3 tests its programs pass 1 (2), 3, 1 (4), 0; sum: 2, 2, 2, 1 of 2; longest: 1, 0, 0, 0 of 1.
    # Of generated tests twice's programs pass 1 (the wrong one), 2, 0, 0: the second is best. sum has none: the first
    # is taken. longest's pass 1 (the third), 2 (x, z z), 0, 0: the second is best.
    assert means(record) == {
        "acc": 5 / 12,
        "ut": pytest.approx((5 + 7 + 1) / (12 + 8 + 4)),
        "bon_4_4_acc": pytest.approx(2 / 3),
        "bon_4_4_ut": pytest.approx((3 + 2 + 0) / (3 + 2 + 1)),
        "case_acc": pytest.approx((2 + 1) / (3 + 4)),
        "case_ut": pytest.approx((2 + 1) / (3 + 4)),
        "p_01": 0.0,
        "p_00": pytest.approx((1 + 2) / (3 + 9)),
    }
    facts = record.suites["code"]
    assert facts.scoring["isolation"] in ("namespaces", "bubblewrap", "limits")
    stored = (tmp_path / "out" / "code" / "executions.jsonl").read_text().splitlines()
    assert sum(facts.scoring["programs"].values()) == len(stored) - 1, "the last line tells what kept them in"

    def refuse(*_: object) -> None:
        raise AssertionError("a program is run again")

    monkeypatch.setattr(pool, "Child", refuse)
    again = evaluate("m", [Job(suite(data, skip="never"))], None, tmp_path / "out")
    assert again.suites["code"].columns == facts.columns
    assert again.suites["code"].scoring == facts.scoring
    cure = run(suite(data, skip="cure"), tmp_path / "out")
    assert cure.suites["code"].columns["own_acc"].mean == 2 / 8, "a task without generated tests counts for nothing"
    assert cure.suites["code"].columns["own_acc"].n == 2


def test_presets_are_the_papers_and_cures_and_every_choice_is_in_the_record() -> None:
    paper, cure = Code.make("paper").settings, Code.make("cure").settings
    assert (paper.temperature, paper.top_p, paper.top_k, paper.programs, paper.cases) == (1.0, 0.95, None, 4, 4)
    assert (cure.temperature, cure.top_p, cure.top_k, cure.programs, cure.cases) == (0.8, 0.95, 40, 16, 16)
    assert (cure.max_tokens, cure.max_tests, cure.best_of) == (10_000, 8, ((4, 4), (16, 16)))
    assert {"executor", "comparator", "skip", "prompt", "isolation"} <= cure.model_dump().keys()


def test_only_the_first_tests_count_where_a_most_is_set(data: Path) -> None:
    found = suite(data, max_tests=1, cases=0)
    item = found.items()[0]
    texts = [f"```python\n{code}\n```" for code in ("print(2)", "print(4)")]
    assert found.score(item, {"programs": texts, "cases": []})["acc"].value == 0.5
    assert [column.name for column in found.columns] == ["own_acc", "own_ut"]


def test_what_is_missing_is_said_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmerge.eval.suites.code.find_spec", lambda name: None)
    found = Code.make("paper", Given(tmp_path), best_of=[[4, 5]], sets=["MBPP", "Own"])
    with pytest.raises(EvalError) as caught:
        evaluate("m", [Job(found)], Scripted(answer), tmp_path / "out")
    text = str(caught.value)
    for part in (
        "holds no MBPP.json, Own.json, expected JSON lines with question, test_input",
        "from CURE's data sets of these names (Gen-Verse)",
        "--set code.sets=A,B",
        "leave to do so. Read docs/evaluation.md on what keeps them in, then add --allow-code-execution.",
        "pip install --no-deps nvidia-livecodebench==26.3",
        "code.best_of: (4, 5) of 4 programs and 4 unit tests, expected 1 to 4 and 1 to 4",
    ):
        assert part in text
    assert not (tmp_path / "out").exists()


def test_a_plan_runs_no_program_and_needs_no_leave_to(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "Child", lambda *_: pytest.fail("a program is run"))
    found = Code.make("paper", Given(data), sets=["Own"], executor="script")
    plan = plan_all([Job(found)], None)["code"]
    assert (plan.items, plan.turns, plan.requests) == (4, 1, 4 * 8)
    with pytest.raises(EvalError, match="add --allow-code-execution"):
        evaluate("m", [Job(found)], Scripted(answer), data / "out")


def test_the_sets_are_fetched_as_the_json_lists_that_they_are(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("agentmerge.eval.fetch._file", lambda hub: asked.append(hub) or data / "Own.json")
    files = fetch("code", Given(tmp_path / "fetched"))
    assert [(file.name, file.items) for file in files] == [(f"{name}.json", 4) for name in SETS]
    assert (asked[2].repository, asked[2].file) == ("Gen-Verse/MBPP", "test/MBPP.json")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"test_output": ["2"]}, "test_input has 3 texts, test_output 1"),
        ({"test_input": "1"}, "test_input is no list of texts"),
        ({"test_time_limit": -1}, "test_time_limit is -1"),
        ({"question": None}, "question is no text"),
    ],
)
def test_a_task_in_another_format_is_told_with_its_place(data: Path, change: dict[str, Any], complaint: str) -> None:
    rows = json.loads((data / "Own.json").read_text())
    rows[0] |= change
    (data / "Own.json").write_text(json.dumps(rows))
    with pytest.raises(EvalError, match=f"Own.json: object 1: {complaint}"):
        suite(data).items()
