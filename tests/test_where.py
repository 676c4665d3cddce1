"""An error is its problems; places are filled in where they become known."""

from __future__ import annotations

import pytest

from agentmerge.errors import BASE, AlignmentError, OutputError, Problem, Role, SourceError, Where, about

X = Where(tensor="x")


def test_a_role_is_said_and_stored_in_its_words() -> None:
    roles = (BASE, Role("code"), Role("code", "importance"))
    assert [str(role) for role in roles] == ["base", "agent 'code'", "agents.code.importance"]
    assert [role.name for role in roles] == ["base", "code", "code.importance"]


def test_a_place_keeps_what_it_knows() -> None:
    other = Where(BASE, "source", "tensor", "path")
    assert Where(Role("code"), tensor="x").filled(other) == Where(Role("code"), "source", "x", "path")
    assert Where().filled(other) == other


@pytest.mark.parametrize("kind", [AlignmentError, OutputError, SourceError])
def test_an_error_that_is_located_or_prefixed_is_the_same_otherwise(kind: type[SourceError]) -> None:
    error = kind("it is odd", Problem("so is that", where=X), expected="even", todo="Do it.")
    located = error.located(Where(BASE, tensor="y"))
    assert type(located) is kind
    assert str(located) == str(error) == "it is odd, expected even. Do it.\nso is that"
    assert [problem.where for problem in located.problems] == [Where(BASE, tensor="y"), Where(BASE, tensor="x")]
    assert str(located.named()) == "base: it is odd, expected even. Do it.\nso is that"


def test_what_is_done_about_something_fails_about_it() -> None:
    with pytest.raises(SourceError) as caught, about(Where(BASE)):
        raise SourceError("odd", where=X)
    assert caught.value.problems[0].where == Where(BASE, tensor="x")
    with pytest.raises(KeyError), about(Where(BASE)):
        raise KeyError
