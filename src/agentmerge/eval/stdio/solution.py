"""A function as a program: it reads its arguments from standard input, and prints what the function returns."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from agentmerge.eval.stdio.forms import Form, literal, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NUMBER = 'def _number(text):\n    return float(text) if set(text) & set(".en") else int(text)'
_READ = {"whole": "int", "decimal": "float", "number": "_number", "word": "str"}


def program(code: str, function: str, arguments: Sequence[Form], result: Form) -> str:
    """The text of a program around a function.

    Args:
        code: defines the function.
        function: its name.
        arguments: how each is written in the input.
        result: how what it returns is printed.
    """
    reading = "".join(f"    {_read(form)},\n" for form in arguments)
    parts = ["import ast", _NUMBER, f"_arguments = (\n{reading})", code, *_printing(f"{function}(*_arguments)", result)]
    return "\n\n".join(parts) + "\n"


def _read(form: Form) -> str:
    """An expression that reads a value."""
    if form.kind == "text":
        return "input()"
    if form.kind == "truth":
        return 'input() == "True"'
    if form.kind == "literal":
        return "ast.literal_eval(input())"
    if form.kind in ("whole", "decimal", "number"):
        return f"{_READ[form.kind]}(input())"
    if form.kind == "lines":
        return f"{form.outer}([input() for _ in range(int(input()))])"
    row = f"(input(), {{kind}}(map({_READ[form.element]}, input().split())))[1]"
    if form.kind == "words":
        return row.format(kind=form.outer)
    return f"{form.outer}([{row.format(kind=form.inner)} for _ in range(int(input()))])"


def _printing(call: str, form: Form) -> list[str]:
    """Statements that print a value."""
    if form.kind == "literal":
        return [_source(literal), f"print(literal({call}))"]
    if form.kind == "lines":
        return [f'print(*{call}, sep="\\n")']
    if form.kind == "words":
        return [_source(plain), f"print(*[plain(_one, {form.element!r}) for _one in {call}])"]
    if form.kind == "rows":
        return [_source(plain), f"for _row in {call}:\n    print(*[plain(_one, {form.element!r}) for _one in _row])"]
    return [_source(plain), f"print(plain({call}, {form.kind!r}))"]


def _source(function: Callable[..., Any]) -> str:
    """A function's text without its annotations, which need imports, and its docstring."""
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    tree.returns, tree.body = None, tree.body[1:]
    for argument in tree.args.args:
        argument.annotation = None
    return ast.unparse(tree)
