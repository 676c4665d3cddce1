"""From which programs passed which tests to ACC, UT, best of n and the accuracy of generated tests. Plain arithmetic.

Reference: CURE, evaluation/eval.py: "code acc" is ACC and "code accumulate acc" is what the paper's Table 7 calls UT,
the share of true tests that generated programs pass, not the accuracy of generated tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentmerge.eval.suite import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

Skip = Literal["cure", "never"]
"""cure: a task for which no generated test could be read counts for nothing, as long as any were asked for; never: it
counts, and the first program is the best one."""


def cells(
    tests: Sequence[Sequence[bool]],
    cases: Sequence[Sequence[bool]],
    best_of: Sequence[tuple[int, int]] = ((4, 4),),
    *,
    asked_for_cases: bool = True,
    skip: Skip = "cure",
) -> dict[str, Cell]:
    """What one task contributes to every metric; means over tasks are weighted as CURE adds up.

    acc: programs that pass all true tests, of all programs. ut: true tests passed, of programs x tests.
    bon_A_B_acc, bon_A_B_ut: the same of one program, that of the first A which passes most of the first B generated
    tests, the earliest of several.
    The rest tells of the generated tests, and is of tasks with a right program. case_acc: those that every right
    program passes. case_ut: passes of right programs, of right programs x generated tests. p_01 and p_00: passes of
    wrong programs, of those at right and of those at wrong generated tests.

    Args:
        tests: [programs, true tests]; without a test nothing can be said, and the task counts for nothing.
        cases: [programs, generated tests].
        best_of: A and B of best of n.
        asked_for_cases: whether generated tests were asked for at all.
        skip: what becomes of a task without generated tests.
    """
    if not tests or not tests[0] or (skip == "cure" and asked_for_cases and not cases[0]):
        return {}
    right = [all(row) for row in tests]
    found = {"acc": _share(right), "ut": _share([cell for row in tests for cell in row])}
    if not asked_for_cases:
        return found
    for a, b in best_of:
        best = best_of_n(cases, a, b)
        found[f"bon_{a}_{b}_acc"] = Cell(float(right[best]))
        found[f"bon_{a}_{b}_ut"] = _share(tests[best])
    return found | (_of_cases(right, cases) if any(right) and cases[0] else {})


def best_of_n(cases: Sequence[Sequence[bool]], programs: int, tests: int) -> int:
    """Which of the first programs passes most of the first generated tests; the earliest of several."""
    passed = [sum(row[:tests]) for row in cases[:programs]]
    return passed.index(max(passed))


def _of_cases(right: Sequence[bool], cases: Sequence[Sequence[bool]]) -> dict[str, Cell]:
    """Of generated tests, where a right program says which of them are right."""
    of_right = [row for row, good in zip(cases, right, strict=True) if good]
    of_wrong = [row for row, good in zip(cases, right, strict=True) if not good]
    true = [all(column) for column in zip(*of_right, strict=True)]
    found = {"case_acc": _share(true), "case_ut": _share([cell for row in of_right for cell in row])}
    for name, kind in (("p_01", True), ("p_00", False)):
        passes = [cell for row in of_wrong for cell, good in zip(row, true, strict=True) if good is kind]
        if passes:
            found[name] = _share(passes)
    return found


def _share(passed: Sequence[bool]) -> Cell:
    return Cell(sum(passed) / len(passed), len(passed))
