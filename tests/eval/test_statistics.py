"""Means, errors and intervals of columns."""

from __future__ import annotations

import math

import pytest

from agentmerge.eval.statistics import summary, wilson
from agentmerge.eval.suite import Cell, Column


def scores(*values, group="", metric="m"):
    return [(group, {metric: value if isinstance(value, Cell) else Cell(value)}) for value in values]


def test_a_share_has_the_error_of_a_mean_and_wilsons_interval():
    found = summary(Column("c", "m", "C"), scores(1, 1, 1, 0))
    assert (found.n, found.mean) == (4, 0.75)
    assert found.error == pytest.approx(math.sqrt(0.25 * 0.75 / 3))
    assert found.interval_from == "wilson"
    assert found.interval == pytest.approx((0.30064, 0.95441), abs=1e-5)


def test_nothing_right_does_not_mean_nothing_can_be():
    low, high = wilson(0.0, 20)
    assert low == 0
    assert high == pytest.approx(0.16113, abs=1e-5)


def test_weights_make_a_ratio_of_sums():
    """Two of three parts, none of one: 2/4, whereas the mean of the items is 1/3."""
    found = summary(Column("c", "m", "C"), scores(Cell(2 / 3, 3), Cell(0.0, 1), Cell(0.0, 0)))
    assert (found.n, found.mean) == (2, 0.5)
    residuals = [3 * (2 / 3 - 0.5), -0.5]
    assert found.error == pytest.approx(math.sqrt(2 / 1 * sum(r * r for r in residuals) / 16))
    assert found.interval_from == "bootstrap"


def test_groups_count_alike_or_items_do():
    both = [*scores(1, 1, 1, 0, group="a"), *scores(0, 1, group="b"), *scores(1, group="c")]
    of = ("a", "b")
    assert summary(Column("c", "m", "C", of, "items"), both).mean == pytest.approx(4 / 6)
    found = summary(Column("c", "m", "C", of, "groups"), both)
    assert found.mean == pytest.approx((0.75 + 0.5) / 2)
    assert found.error == pytest.approx(math.sqrt(0.25 * 0.75 / 3 + 0.25) / 2)
    low, high = found.interval
    assert 0 < low < found.mean < high <= 1


def test_items_are_drawn_within_groups_where_all_count_alike_too():
    """Two groups that differ much and hardly vary: nothing is uncertain but what varies within them."""
    both = [*scores(0.9, 1.0, 0.9, 1.0, group="a"), *scores(0.0, 0.1, group="b")]
    found = summary(Column("c", "m", "C"), both)
    assert found.mean == pytest.approx(3.9 / 6)
    within = [4 / 3 * 4 * 0.05**2, 2 / 1 * 2 * 0.05**2]
    assert found.error == pytest.approx(math.sqrt(sum(within)) / 6)
    low, high = found.interval
    assert 3.6 / 6 - 1e-12 <= low < found.mean < high <= 4.1 / 6 + 1e-12, "four of a and two of b in every draw"


def test_a_group_of_one_item_adds_its_distance_from_the_mean():
    both = [*scores(1.0, 0.5, group="a"), *scores(0.0, group="b")]
    found = summary(Column("c", "m", "C"), both)
    assert found.error == pytest.approx(math.sqrt(2 * 2 * 0.25**2 + 0.5**2) / 3)


def test_an_interval_stays_in_a_scores_range():
    """Nine ninths add up to more than 1 in floating point."""
    cells = [one for group in "abcdefghi" for one in scores(1.0, 1.0, group=group)]
    assert summary(Column("c", "m", "C", combine="groups"), cells).interval == (1.0, 1.0)


def test_what_does_not_count_is_not_there():
    found = summary(Column("c", "other", "C"), scores(1, 0))
    assert (found.n, found.mean, found.error, found.interval) == (0, None, None, None)


def test_one_item_has_no_error():
    found = summary(Column("c", "m", "C"), scores(1))
    assert (found.mean, found.error) == (1, None)
