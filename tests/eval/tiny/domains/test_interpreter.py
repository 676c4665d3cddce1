"""The demo's list language runs programs and nothing else."""

from __future__ import annotations

import pytest

from agentmerge.eval.tiny.domains.interpreter import LONGEST, MOST_STEPS, ProgramError, parse, run

NUMBERS = [5, 30, 2, 71]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("x", [5, 30, 2, 71]),
        ("x.rev()", [71, 2, 30, 5]),
        ("x.sort()", [2, 5, 30, 71]),
        ("x.take(2)", [5, 30]),
        ("x.take(9)", [5, 30, 2, 71]),
        ("x.drop(1)", [30, 2, 71]),
        ("x.add(10).mul(2)", [30, 80, 24, 162]),
        ("x.gt(5)", [30, 71]),
        ("x.lt(30).rev()", [2, 5]),
    ],
)
def test_a_program_runs_from_left_to_right(program: str, expected: list[int]) -> None:
    assert run(program, NUMBERS) == expected


def test_a_program_leaves_its_input_as_it_was() -> None:
    numbers = list(NUMBERS)
    run("x.sort().rev().add(3)", numbers)
    assert numbers == NUMBERS


@pytest.mark.parametrize(
    "program",
    [
        "",
        "y.rev()",
        "x.rev",
        "x.rev(3)",
        "x.take()",
        "x.take(100)",
        "x.take(-1)",
        "x.take(x)",
        "x.rev() ",
        " x.rev()",
        "x.rev();x.rev()",
        "x.__class__()",
        "x.__class__.__mro__",
        "__import__('os').system('true')",
        "x.append(1)",
        "x.take(1)\n",
        "x.take(\u0661)",
        "x.mul(9)" + ".mul(99)" * 40,
        "x" + ".rev()" * (MOST_STEPS + 1),
        "x" * (LONGEST + 1),
        "x.add(1" + "0" * 10**6 + ")",
        "x.REV()",
        "x..rev()",
        "\0",
    ],
)
def test_anything_else_is_refused(program: str) -> None:
    with pytest.raises(ProgramError):
        run(program, NUMBERS)


def test_the_greatest_program_is_small_work() -> None:
    program = "x" + ".mul(99)" * MOST_STEPS
    result = run(program, list(range(10)))
    assert len(program) <= LONGEST
    assert len(parse(program)) == MOST_STEPS
    assert len(result) == 10
    assert max(result) == 9 * 99**MOST_STEPS < 2**83


def test_steps_are_words_and_numbers() -> None:
    assert parse("x.add(13).rev()") == [("add", 13), ("rev", None)]
