"""MBPP's tasks, functions tested by asserts, as tasks in CURE's format: programs tested by what they print.

Reference: the paper, appendix B.1; CURE, data/readme.md. See `forms` for how values are written.
"""

from __future__ import annotations

import ast
import operator
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError
from agentmerge.eval.stdio.forms import Form, form_of
from agentmerge.eval.stdio.solution import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIELDS = ("task_id", "text", "code", "test_list")
"""Of an MBPP task; `test_setup_code` may stand beside them."""
SECONDS = 1
"""What a program gets for a test, as in CURE's data."""
_OPERATORS = {ast.Div: operator.truediv, ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub}


@dataclass(frozen=True)
class Converted:
    """What became of a file."""

    tasks: list[dict[str, Any]]
    skipped: dict[str, str]
    """Why, by task."""


@dataclass(frozen=True)
class _Call:
    """One assert: a function, what it is called with, and what it must return."""

    function: str
    arguments: tuple[Any, ...]
    expected: Any


def convert(rows: Sequence[Mapping[str, Any]], shown: int = 1) -> Converted:
    """Tasks in CURE's format: question, test_input, test_output, example_input, example_output, test_time_limit.

    Beside them stand `id` and `solution`, the gold function as a program.

    Args:
        rows: MBPP's tasks.
        shown: tests that the question shows as examples; they stay among the tests, as MBPP's own prompt shows them.
    """
    tasks, skipped = [], {}
    for row in rows:
        try:
            tasks.append(task(row, shown))
        except EvalError as error:
            skipped[str(row["task_id"])] = str(error)
    return Converted(tasks, skipped)


def task(row: Mapping[str, Any], shown: int = 1) -> dict[str, Any]:
    """One task; see `convert`.

    Raises:
        EvalError: a test is no plain call that is compared with a plain value.
    """
    setup, code = (row.get(name, "").replace("\r\n", "\n") for name in ("test_setup_code", "code"))
    calls = [_call(test) for test in row["test_list"]]
    names, counts = {call.function for call in calls}, {len(call.arguments) for call in calls}
    if len(names) != 1 or len(counts) != 1:
        raise EvalError(f"tests call {', '.join(sorted(names))} with {sorted(counts)} arguments", expected="one way")
    places = [form_of(values) for values in zip(*(call.arguments for call in calls), strict=True)]
    output = form_of([call.expected for call in calls])
    inputs = ["".join(form.written(v) + "\n" for form, v in zip(places, c.arguments, strict=True)) for c in calls]
    outputs = [output.printed(call.expected) + "\n" for call in calls]
    parameters = _parameters(code, calls[0])
    return {
        "id": f"mbpp-{row['task_id']}",
        "question": _question(row["text"], list(zip(parameters, places, strict=True)), output, inputs, outputs, shown),
        "test_input": inputs,
        "test_output": outputs,
        "example_input": inputs[:shown],
        "example_output": outputs[:shown],
        "test_time_limit": SECONDS,
        "solution": program(f"{setup}\n{code}".strip(), calls[0].function, places, output),
    }


def _call(test: str) -> _Call:
    try:
        (statement,) = ast.parse(test.strip()).body
        compared = statement.test  # type: ignore[attr-defined]
        (comparison,), (right,) = compared.ops, compared.comparators
        if not isinstance(comparison, ast.Eq) or compared.left.keywords:
            raise ValueError("another comparison")
        arguments = tuple(map(_value, compared.left.args))
        return _Call(compared.left.func.id, arguments, _value(right))
    except (SyntaxError, ValueError, AttributeError, TypeError, ArithmeticError) as error:
        expected = "assert FUNCTION(VALUES) == VALUE, with plain values"
        raise EvalError(f"{test.strip()[:100]!r}", expected=expected) from error


def _value(node: ast.expr) -> Any:
    """A plain value; its numbers may be computed of others by + - * /.

    Raises:
        ValueError: it is none.
    """
    return ast.literal_eval(_Computed().visit(node))


class _Computed(ast.NodeTransformer):
    """What is computed of numbers is one."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        sides = self.visit(node.left), self.visit(node.right)
        numbers = [side.value for side in sides if isinstance(side, ast.Constant) and type(side.value) in (int, float)]
        if len(numbers) < 2 or type(node.op) not in _OPERATORS:
            return node
        return ast.Constant(_OPERATORS[type(node.op)](*numbers))


def _parameters(code: str, call: _Call) -> list[str]:
    """What the gold function calls its arguments, where it says so for all."""
    numbered = [f"argument {place}" for place, _ in enumerate(call.arguments, 1)]
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that some of MBPP's functions have
            body = ast.parse(code).body
    except SyntaxError:
        return numbered
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == call.function:
            names = [argument.arg for argument in node.args.args][: len(numbered)]
            return names if len(names) == len(numbered) else numbered
    return numbered


def _question(
    text: str, inputs: list[tuple[str, Form]], output: Form, stdin: list[str], stdout: list[str], shown: int
) -> str:
    """The task's text, what is read and printed, and examples."""
    lines = [text.strip(), "", "Do it as a program that reads standard input and prints to standard output.", "Input:"]
    lines += [f"- {name}: {form.words('input')}" for name, form in inputs]
    lines += ["Output:", f"- the result: {output.words('output')}"]
    for read, printed in zip(stdin[:shown], stdout[:shown], strict=True):
        lines += ["", "Example input:", read.rstrip("\n"), "", "Example output:", printed.rstrip("\n")]
    return "\n".join(lines) + "\n"
