"""Draws against every draw there is, and adjusted p by hand."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.eval.compare.asked import Asked
from agentmerge.eval.compare.estimates import Place
from agentmerge.eval.compare.resampled import bootstrap, drawn_signs, holm, interval, p_value, swapped
from agentmerge.eval.record import ColumnFacts

if TYPE_CHECKING:
    from collections.abc import Sequence


def place(combine: str = "items", groups: Sequence[str] = ()) -> Place:
    facts = ColumnFacts(
        n=0, mean=None, error=None, interval=None, interval_from=None, label="it", metric="right",
        groups=tuple(groups), combine=combine,
    )  # type: ignore[arg-type]  # fmt: skip
    return Place("suite", "it", facts)


def asked(
    values: Sequence[Sequence[float]], weights: Sequence[Sequence[float]] | None = None, sizes: Sequence[int] = ()
) -> Asked:
    """Rows "a", "b", ...; groups of these sizes, else one."""
    array = np.array(values, dtype=np.float64)
    ends = np.cumsum(sizes or [array.shape[1]]).tolist()
    groups = {f"g{i}": slice(begin, end) for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))}
    heavy = np.ones_like(array) if weights is None else np.array(weights, dtype=np.float64)
    return Asked("suite", tuple("abcdef"[: len(array)]), groups, {"right": array}, {"right": heavy})


def every_mean(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Of all n^n draws, in plain Python."""
    n = len(values)
    return [
        sum(weights[i] * values[i] for i in draw) / sum(weights[i] for i in draw)
        for draw in itertools.product(range(n), repeat=n)
    ]


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 4.0, 2.0, 1.0, 3.0]])
def test_the_bootstrap_draws_as_all_draws_do(weights: list[float]) -> None:
    values = [0.0, 0.3, 1.0, 0.5, 0.9]
    drawn = bootstrap([place()], asked([values], [weights]), seed=1, draws=40_000)["a", "suite.it"]
    every = every_mean(values, weights)
    assert drawn.mean() == pytest.approx(np.mean(every), abs=0.004)
    assert drawn.std() == pytest.approx(np.std(every), rel=0.02)
    for share in (0.025, 0.25, 0.5, 0.975):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(every, share), abs=0.02)


def test_all_rows_have_the_same_items_in_a_draw() -> None:
    found = bootstrap([place()], asked([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]), seed=0, draws=50)
    assert np.array_equal(found["a", "suite.it"], found["c", "suite.it"])
    assert np.allclose(found["a", "suite.it"] + found["b", "suite.it"], 1.0)


def test_groups_keep_their_sizes() -> None:
    """A group that is all right and one that is all wrong: their shares are no matter of the draw."""
    found = bootstrap([place(), place()], asked([[1, 1, 1, 0, 0]], sizes=[3, 2]), seed=0, draws=50)
    assert np.allclose(found["a", "suite.it"], 0.6)


def test_another_row_changes_no_number() -> None:
    two, three = asked([[1, 0, 1], [0, 0, 1]]), asked([[1, 0, 1], [0, 0, 1], [1, 1, 1]])
    one = bootstrap([place()], two, seed=5, draws=20)["b", "suite.it"]
    assert np.array_equal(one, bootstrap([place()], three, seed=5, draws=20)["b", "suite.it"])
    assert not np.array_equal(one, bootstrap([place()], two, seed=6, draws=20)["b", "suite.it"])


def slow_p(a: Sequence[float], b: Sequence[float], wa: Sequence[float], wb: Sequence[float]) -> float:
    """The share of all 2^n ways to swap that give a difference at least as large, in plain Python."""

    def difference(swap: Sequence[int]) -> float:
        sides = [[(y, v) if s else (x, w) for x, w, y, v, s in zip(a, wa, b, wb, swap, strict=True)],
                 [(x, w) if s else (y, v) for x, w, y, v, s in zip(a, wa, b, wb, swap, strict=True)]]  # fmt: skip
        one, two = (sum(x * w for x, w in side) / sum(w for _, w in side) for side in sides)
        return one - two

    real = abs(difference([0] * len(a)))
    ways = list(itertools.product((0, 1), repeat=len(a)))
    return sum(abs(difference(way)) >= real - 1e-12 for way in ways) / len(ways)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_swap_test_agrees_with_all_swaps(weighted: bool) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.random(9), rng.random(9) * 0.6
    wa, wb = (rng.integers(1, 5, (2, 9)) if weighted else np.ones((2, 9))).astype(float)
    both = asked([a.tolist(), b.tolist()], [wa.tolist(), wb.tolist()])
    drawn = swapped(place(), both, ("a", "b"), drawn_signs(both, seed=0, swaps=20_000))
    real = float(a @ wa / wa.sum() - b @ wb / wb.sum())
    expected = slow_p(a.tolist(), b.tolist(), wa.tolist(), wb.tolist())
    assert p_value(real, drawn) == pytest.approx(expected, abs=3.5 * math.sqrt(expected * (1 - expected) / 20_000))


def test_with_right_and_wrong_answers_it_is_mcnemars_test() -> None:
    """9 items that only one gets right, 2 that only the other does: twice the binomial tail of 2 in 11."""
    a, b = [1.0] * 9 + [0.0] * 2 + [1.0] * 20, [0.0] * 9 + [1.0] * 2 + [1.0] * 20
    both = asked([a, b])
    drawn = swapped(place(), both, ("a", "b"), drawn_signs(both, seed=0, swaps=20_000))
    exact = 2 * sum(math.comb(11, k) for k in range(3)) / 2**11
    assert p_value(7 / 31, drawn) == pytest.approx(exact, abs=0.006)


def test_no_difference_has_p_1_and_the_smallest_p_is_never_0() -> None:
    assert p_value(0.0, np.zeros(99)) == 1.0
    assert p_value(0.5, np.full(99, 0.1)) == 0.01
    assert p_value(0.5, np.full(99, np.nan)) == 1.0, "a draw without a number speaks for nothing"


def test_a_mean_of_groups_is_swapped_within_them() -> None:
    both = asked([[1, 1, 0, 0], [0, 0, 0, 0]], sizes=[2, 2])
    drawn = swapped(place("groups"), both, ("a", "b"), drawn_signs(both, seed=0, swaps=400))
    assert set(np.unique(drawn)) == {-0.5, 0.0, 0.5}


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_an_interval_is_what_lies_between_the_percentiles() -> None:
    assert interval(np.arange(1001) / 1000) == pytest.approx((0.025, 0.975))
