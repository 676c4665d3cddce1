"""How values become standard input and output, and back."""

from __future__ import annotations

import builtins
import io
from collections import Counter, OrderedDict
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmerge.eval.stdio.forms import Form, form_of, literal
from agentmerge.eval.stdio.solution import program

WORDS = st.text("abcXYZ09_-é", min_size=1, max_size=5)
SCALARS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(), st.text()
)
VALUES = st.one_of(
    SCALARS,
    st.lists(st.integers()),
    st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))),
    st.lists(WORDS),
    st.lists(st.text()),
    st.lists(st.lists(st.integers(-9, 9))),
    st.tuples(st.integers(), WORDS),
    st.lists(st.tuples(WORDS, WORDS)),
    st.lists(st.lists(SCALARS, max_size=3), max_size=3),
    st.dictionaries(WORDS, st.integers()),
    st.sets(st.integers()),
)


def echoed(forms: list[Form], values: list[Any], result: Form, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """What a program's function gets when it reads these values, and what is printed when it returns the first."""
    got: list[Any] = []
    lines = iter("".join(form.written(v) + "\n" for form, v in zip(forms, values, strict=True)).split("\n"))
    text = program("def f(*values):\n    got.append(values)\n    return values[0]", "f", forms, result)
    with monkeypatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(builtins, "input", lambda: next(lines))
        exec(compile(text, "program.py", "exec"), {"got": got})
    return got[0], printed.getvalue()


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_a_program_reads_what_was_written_and_prints_what_is_expected(values: list[Any]) -> None:
    forms = [form_of([value]) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        got, printed = echoed(forms, values, forms[0], patch)
    assert literal(got) == literal(tuple(values)), "types too: 1 is not 1.0, a tuple no list"
    assert printed.split("\n")[:-1] == forms[0].printed(values[0]).split("\n")


def test_the_example_of_the_paper() -> None:
    form = form_of([[1, 2, 3, 4, 5]])
    assert (form.kind, form.written([1, 2, 3, 4, 5])) == ("words", "5\n1 2 3 4 5")
    assert form_of([15]).printed(15) == "15"


@pytest.mark.parametrize(
    ("values", "kind", "written", "printed"),
    [
        ([7, -2], "whole", "7", "7"),
        ([2.0, 0.5], "decimal", "2.0", "2.0"),
        ([2.0, 3], "number", "2.0", "2"),
        ([True, False], "truth", "True", "True"),
        (["a b", ""], "text", "a b", "a b"),
        ([[]], "words", "0\n", ""),
        ([["ab", "c"]], "words", "2\nab c", "ab c"),
        ([["a b", "c"]], "lines", "2\na b\nc", "a b\nc"),
        ([[[1, 2], [3]]], "rows", "2\n2\n1 2\n1\n3", "1 2\n3"),
        ([(1, 2), (3,)], "words", "2\n1 2", "1 2"),
        ([[1, "a"]], "literal", "[1, 'a']", "[1, 'a']"),
        ([{"b": 1, "a": {2, 1}}], "literal", "{'a': {1, 2}, 'b': 1}", "{'a': {1, 2}, 'b': 1}"),
        (["a\nb", "c"], "literal", "'a\\nb'", "'a\\nb'"),
        ([" a"], "literal", "' a'", "' a'"),
        ([1, True], "literal", "1", "1"),
        ([[1], (1,)], "literal", "[1]", "[1]"),
        ([None], "literal", "None", "None"),
    ],
    ids=lambda value: str(value),
)
def test_a_form_fits_all_values_of_its_place(values: list[Any], kind: str, written: str, printed: str) -> None:
    form = form_of(values)
    assert (form.kind, form.written(values[0]), form.printed(values[0])) == (kind, written, printed)


def test_a_literal_says_the_same_of_equal_values() -> None:
    assert literal(OrderedDict(b=1, a=2)) == literal({"a": 2, "b": 1}) == literal(Counter("aab"))
    assert (literal(frozenset()), literal((1,)), literal(())) == ("set()", "(1,)", "()")


@pytest.mark.parametrize(
    ("expected", "returned", "same"),
    [(240, 240.0, True), (240, 240.5, False), (True, 1, True), (1, True, True), (2.0, 2, True), (False, None, False)],
)
def test_a_program_prints_what_an_assert_takes_for_equal(expected: Any, returned: Any, same: bool) -> None:
    form = form_of([expected])
    text = program(f"def f():\n    return {returned!r}", "f", [], form)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, "program.py", "exec"), {})
    assert (printed.getvalue() == form.printed(expected) + "\n") is same
