"""MBPP's gold functions as programs pass their tests, and mutated ones fare as they do by MBPP's own asserts."""

from __future__ import annotations

import ast
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from agentmerge.eval.execution.pool import execute
from agentmerge.eval.execution.trial import Comparator, Executor, Limits, Trial, Verdict
from agentmerge.eval.stdio.mbpp import Converted, convert

pytestmark = pytest.mark.slow
MBPP = Path(__file__).parents[2] / "../shared/data/mbpp_test.jsonl"
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """MBPP's tasks by the ids that they get."""
    if not MBPP.is_file():
        pytest.skip("no ../shared/data/mbpp_test.jsonl beside this checkout")
    found = map(json.loads, MBPP.read_text().splitlines())
    return {f"mbpp-{row['task_id']}": row for row in found}


@pytest.fixture(scope="module")
def mbpp(rows: dict[str, dict[str, Any]]) -> Converted:
    return convert(list(rows.values()))


def pairs_of(task: dict[str, Any]) -> list[tuple[str, str]]:
    return list(zip(task["test_input"], task["test_output"], strict=True))


def run(trials: dict[str, Trial]) -> dict[str, Verdict]:
    done = execute(trials.values(), Limits(), allowed=True)
    return {name: done.verdicts[trial.key(Limits())] for name, trial in trials.items()}


@pytest.mark.parametrize(("executor", "comparator", "step"), [("lcb", "lcb", 1), ("script", "cure", 3)])
def test_gold_programs_pass(executor: Executor, comparator: Comparator, step: int, mbpp: Converted) -> None:
    """All but task 367, whose tests build a tree of the task's own class: it can't be written to standard input.

    Task 123 takes more than MBPP's second by itself, so all have more here.
    """
    if executor == "lcb":
        pytest.importorskip("livecodebench", reason="pip install --no-deps nvidia-livecodebench==26.3")
    assert len(mbpp.tasks) == 499
    assert mbpp.skipped.keys() == {"367"}
    found = run(
        {
            f"{task['id']} {number}": Trial(task["solution"], *test, 60.0, executor, comparator)
            for task in mbpp.tasks[::step]
            for number, test in enumerate(pairs_of(task))
        }
    )
    assert {name for name, verdict in found.items() if verdict != "passed"} == set()


def parsed(code: str) -> ast.Module:
    """A program's tree; some of MBPP's have escapes that Python warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def mutated(code: str, place: int) -> str | None:
    """The program with one operator, comparison or whole number changed; None where it has none."""
    tree = parsed(code)
    sites = [node for node in ast.walk(tree) if _changed(node, really=False)]
    if not sites:
        return None
    _changed(sites[place % len(sites)], really=True)
    return ast.unparse(tree)


def _changed(node: ast.AST, *, really: bool) -> bool:
    """Whether there is something to change, and change it."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += really
        return True
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]() if really else node.op  # type: ignore[assignment]
        return True
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]() if really else node.ops[0]  # type: ignore[call-overload]
        return True
    return False


def test_mutants_fail_just_where_their_asserts_do(rows: dict[str, dict[str, Any]], mbpp: Converted) -> None:
    by_output, by_assert = {}, {}
    for place, task in list(enumerate(mbpp.tasks))[::12]:
        code = rows[task["id"]]["code"].replace("\r\n", "\n").strip()
        mutant = mutated(code, place)
        if mutant is None:
            continue
        for number, test in enumerate(pairs_of(task)):
            name = f"{task['id']} {number}"
            by_output[name] = Trial(task["solution"].replace(code, mutant), *test, 2.0, "script", "cure")
            asserted = f"{mutant}\n\n{rows[task['id']]['test_list'][number].strip()}\nprint('right')"
            by_assert[name] = Trial(asserted, "", "right", 2.0, "script")
    printed, asserted_ = run(by_output), run(by_assert)
    differ = {name for name in printed if (printed[name] == "passed") != (asserted_[name] == "passed")}
    assert differ == set()
    assert sum(verdict != "passed" for verdict in printed.values()) > len(printed) / 2, "most mutants fail"


def test_programs_that_return_something_else_fail_every_test(rows: dict[str, dict[str, Any]], mbpp: Converted) -> None:
    trials = {}
    for task in mbpp.tasks[::6]:
        code = rows[task["id"]]["code"].replace("\r\n", "\n").strip()
        tree = parsed(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.Return):
                node.value = ast.Constant("something else")
        text = task["solution"].replace(code, ast.unparse(ast.fix_missing_locations(tree)))
        for number, test in enumerate(pairs_of(task)):
            trials[f"{task['id']} {number}"] = Trial(text, *test, 2.0, "script", "cure")
    assert {name for name, verdict in run(trials).items() if verdict == "passed"} == set()
