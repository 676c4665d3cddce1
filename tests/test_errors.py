"""A problem is one message for people and its parts for programs."""

from __future__ import annotations

import pytest

from agentmerge.errors import (
    BASE,
    DataError,
    MergeError,
    Note,
    OutputError,
    Problem,
    Role,
    SourceNotFoundError,
    Where,
    calling,
)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("x: found 3", "4", "Do this. And that."), "x: found 3, expected 4. Do this. And that."),
        (Problem("x differs;", "the same", "Set a: b."), "x differs; expected the same. Set a: b."),
        (Problem("x has 3.\n", "4", "Do it."), "x has 3.\nExpected 4. Do it."),
        (Problem("x has 3.", "4", "Do it."), "x has 3. Expected 4. Do it."),
        (Problem("x is odd"), "x is odd"),
        (Problem("x is odd", todo="Put it right."), "x is odd. Put it right."),
        (Problem("is x odd?", todo="Look."), "is x odd? Look."),
        (Problem("x is odd", "even"), "x is odd, expected even."),
    ],
)
def test_the_text_of_a_problem_is_made_of_its_parts(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_an_error_is_its_problems_and_the_built_in_kind() -> None:
    where = Where(Role("code"), "path", "norm.weight")
    error = DataError("a", expected="b", todo="C.", where=where)
    assert str(error) == "a, expected b. C."
    assert error.problems == (Problem("a", "b", "C.", where),)
    assert isinstance(error, ArithmeticError)
    both = OutputError(*error.problems, Problem("x is full", todo="Free some."))
    assert str(both) == "a, expected b. C.\nx is full. Free some."
    assert isinstance(both, OSError)
    assert str(SourceNotFoundError("nothing there")) == "nothing there"


def test_a_role_is_named_as_in_messages_and_as_in_recipes() -> None:
    assert (str(BASE), BASE.name) == ("base", "base")
    assert (str(Role("code")), Role("code").name) == ("agent 'code'", "code")


def test_a_note_is_a_warning_unless_it_says_otherwise() -> None:
    note = Note("every agent changed everything:", "is this the right base?")
    assert str(note) == "every agent changed everything: is this the right base?"
    assert note.severity == "warning"


def test_folders_are_called_by_other_names_the_longest_first_and_notes_stay() -> None:
    error = MergeError("/private/var/x/config.json is not /var/x/config.json")
    error.add_note("the merge is complete")
    with pytest.raises(MergeError) as caught, calling({"/var/x": "org/a", "/private/var/x": "org/a"}):
        raise error
    assert str(caught.value) == "org/a/config.json is not org/a/config.json"
    assert caught.value.__notes__ == ["the merge is complete"]
    with pytest.raises(MergeError) as caught, calling({}):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None
