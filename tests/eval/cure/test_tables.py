"""The arithmetic of CURE, on tables small enough to be done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmerge.eval.cure.tables import best_of_n, cells
from agentmerge.eval.suite import Cell


def table(*rows: str) -> list[list[bool]]:
    """A program each: "10" passes the first of two tests."""
    return [[cell == "1" for cell in row] for row in rows]


def tables(columns: int) -> st.SearchStrategy[list[list[bool]]]:
    """Of four programs."""
    return st.lists(st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=4, max_size=4)


def test_every_metric_of_one_task_by_hand() -> None:
    tests = table("111", "110", "111", "000")  # the first and the third program are right
    cases = table("1010", "1110", "1011", "1001")  # both pass the first and the third generated test
    found = cells(tests, cases, [(4, 4), (2, 2), (4, 1)])
    assert found["acc"] == Cell(2 / 4, 4)
    assert found["ut"] == Cell(8 / 12, 12)
    assert found["bon_4_4_acc"] == Cell(0), "the second passes 3, as the third, and is earlier"
    assert found["bon_4_4_ut"] == Cell(2 / 3, 3)
    assert (found["bon_2_2_acc"], found["bon_2_2_ut"]) == (Cell(0), Cell(2 / 3, 3))
    assert (found["bon_4_1_acc"], found["bon_4_1_ut"]) == (Cell(1), Cell(1, 3)), "all pass it: the first"
    assert found["case_acc"] == Cell(2 / 4, 4)
    assert found["case_ut"] == Cell(5 / 8, 8)
    assert found["p_01"] == Cell(3 / 4, 4), "wrong programs at the right tests: 11 and 10"
    assert found["p_00"] == Cell(2 / 4, 4), "wrong programs at the wrong tests: 10 and 01"


def test_without_a_right_program_nothing_is_said_of_generated_tests() -> None:
    found = cells(table("10", "01"), table("1", "1"), [(2, 1)])
    assert found == {
        "acc": Cell(0, 2),
        "ut": Cell(0.5, 4),
        "bon_2_1_acc": Cell(0),
        "bon_2_1_ut": Cell(0.5, 2),
    }


def test_where_all_programs_are_right_nothing_is_said_of_wrong_ones() -> None:
    assert not {"p_01", "p_00"} & cells(table("1", "1"), table("10", "11"), [(2, 2)]).keys()


def test_a_task_without_tests_counts_for_nothing_though_every_program_passes_all_of_them() -> None:
    assert cells(table("", "", "", ""), table("1", "1", "1", "1"), skip="never") == {}


def test_a_task_without_generated_tests_counts_as_the_skip_rule_says() -> None:
    tests, cases = table("0", "1", "1", "1"), table("", "", "", "")
    assert cells(tests, cases, skip="cure") == {}
    found = cells(tests, cases, skip="never")
    assert found["acc"] == Cell(3 / 4, 4)
    assert found["bon_4_4_acc"] == Cell(0), "the first one is taken"
    assert "case_acc" not in found


def test_where_no_generated_tests_are_asked_for_programs_count_alone() -> None:
    assert cells(table("0", "1"), table("", ""), asked_for_cases=False) == {"acc": Cell(0.5, 2), "ut": Cell(0.5, 2)}


@pytest.mark.parametrize(("programs", "tests", "best"), [(4, 4, 3), (3, 4, 1), (4, 1, 1), (1, 4, 0)])
def test_best_of_n_looks_at_the_first_programs_and_tests_alone(programs: int, tests: int, best: int) -> None:
    assert best_of_n(table("0000", "1100", "1010", "0111"), programs, tests) == best


@given(tables(3), tables(4))
def test_best_of_n_is_at_most_the_oracle_and_all_is_at_most_each(
    tests: list[list[bool]], cases: list[list[bool]]
) -> None:
    found = cells(tests, cases, [(4, 4), (2, 3)])
    assert found["acc"].value <= found["ut"].value
    for name in ("bon_4_4", "bon_2_3"):
        assert found[f"{name}_acc"].value <= float(any(all(row) for row in tests))
        assert found[f"{name}_acc"].value <= found[f"{name}_ut"].value <= max(sum(row) / 3 for row in tests)


@given(tables(3))
def test_the_true_tests_are_the_best_generated_ones(tests: list[list[bool]]) -> None:
    found = cells(tests, tests, [(4, 3)])
    assert found["bon_4_3_acc"].value == float(any(all(row) for row in tests))
    if found["acc"].value:
        assert found["case_acc"].value == found["case_ut"].value == 1
