"""MBPP's tasks in CURE's format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.cli.eval_convert_mbpp import eval_convert_mbpp
from agentmerge.errors import EvalError
from agentmerge.eval.cure.tasks import CodeTask
from agentmerge.eval.stdio.mbpp import convert, task

if TYPE_CHECKING:
    from pathlib import Path

SUM: dict[str, Any] = {
    "task_id": 7,
    "text": "Write a function to add numbers. ",
    "code": "def sum_function(numbers):\r\n    return sum(numbers)\r\n",
    "test_list": ["assert sum_function([1, 2, 3, 4, 5]) == 15", "assert sum_function([])==0"],
}


def test_a_task_by_hand() -> None:
    found = task(SUM)
    assert found["test_input"] == ["5\n1 2 3 4 5\n", "0\n\n"]
    assert found["test_output"] == ["15\n", "0\n"]
    assert (found["example_input"], found["example_output"]) == (["5\n1 2 3 4 5\n"], ["15\n"])
    assert found["question"] == (
        "Write a function to add numbers.\n\n"
        "Do it as a program that reads standard input and prints to standard output.\n"
        "Input:\n"
        "- numbers: the number of integers on a line, and the integers on the next, separated by spaces\n"
        "Output:\n"
        "- the result: an integer\n\n"
        "Example input:\n5\n1 2 3 4 5\n\nExample output:\n15\n"
    )
    assert CodeTask.load(found, "MBPP.json").seconds == 1


def test_what_is_computed_of_plain_values_is_one() -> None:
    found = task({**SUM, "test_list": ["assert sum_function([1.0 / 2, 3 * 2]) == 7 - 0.5"]})
    assert (found["test_input"], found["test_output"]) == (["2\n0.5 6\n"], ["6.5\n"])


@pytest.mark.parametrize(
    "test",
    [
        "assert sum_function(root) == 1",
        "assert sum_function([1]) != 1",
        "assert sum_function([1])",
        "assert 1 < sum_function([1]) < 3",
        "assert sum_function(numbers=[1]) == 1",
        "assert module.sum_function([1]) == 1",
        "assert sum_function(*[1]) == 1",
        "sum_function([1]) == 1",
        "assert sum_function([1]) ==",
    ],
)
def test_a_test_that_is_no_plain_call_is_left_out_with_the_reason(test: str) -> None:
    found = convert([SUM, {**SUM, "task_id": 8, "test_list": [test]}])
    assert [one["id"] for one in found.tasks] == ["mbpp-7"]
    assert found.skipped == {"8": f"{test!r}, expected assert FUNCTION(VALUES) == VALUE, with plain values."}


def test_tests_that_call_differently_are_left_out() -> None:
    with pytest.raises(EvalError, match="f, g with"):
        task({**SUM, "test_list": ["assert f(1) == 1", "assert g(1) == 1"]})


def test_the_command_writes_a_file_that_the_suite_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "mbpp.jsonl", tmp_path / "MBPP.json"
    source.write_text("".join(json.dumps(row) + "\n" for row in (SUM, {**SUM, "task_id": 8, "test_list": ["no"]})))
    eval_convert_mbpp(source, out)
    assert "1 tasks" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())
    assert CodeTask.load(row, "MBPP.json").tests == (("5\n1 2 3 4 5\n", "15\n"), ("0\n\n", "0\n"))
    with pytest.raises(EvalError, match="is there already"):
        eval_convert_mbpp(source, out)
