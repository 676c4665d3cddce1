"""Means and errors, against what comes out by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.eval.compare.asked import asked_of
from agentmerge.eval.compare.estimates import Place, covariance, error, estimate, mean_of
from agentmerge.eval.results import load_results
from agentmerge.eval.suite import Column

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.compare.asked import Asked

    from .conftest import Made


def placed(made: Made, suite: str, column: str | None = None) -> tuple[Place, dict[str, Asked]]:
    results = load_results(made.folder)
    name = column or suite
    place = Place(suite, name, results.record.suites[suite].columns[name])
    return place, {suite: asked_of(suite, {made.folder.name: results})}


def test_the_mean_and_error_of_right_and_wrong_answers(made: Callable[..., Made]) -> None:
    place, asked = placed(made("base").suite("gsm8k", "maths", {"": [1, 1, 1, 0]}), "gsm8k")
    found = estimate(place, asked["gsm8k"], "base")
    assert found is not None
    assert found.mean == 0.75
    assert error(found, asked) == pytest.approx(math.sqrt(0.1875 / 3))  # p (1 - p) / (n - 1)


def test_weights_count_tests_of_an_item(made: Callable[..., Made]) -> None:
    """1 of 2 and 6 of 8 tests passed: 7 of 10; a task moves it by its passed tests less 0.7 of all of its tests."""
    place, asked = placed(made("base").suite("code", "code", {"": [(0.5, 2.0), (0.75, 8.0)]}), "code")
    found = estimate(place, asked["code"], "base")
    assert found is not None
    assert found.mean == pytest.approx(0.7)
    assert found.influence["code"] == pytest.approx([-0.04, 0.04])
    assert error(found, asked) == pytest.approx(math.sqrt(2 * (0.04**2 + 0.04**2)))


def test_a_mean_of_groups_weighs_small_groups_as_large_ones(made: Callable[..., Made]) -> None:
    columns = [Column("all", "right", "all"), Column("plain", "right", "plain", combine="groups")]
    model = made("base").suite("bfcl", "tool", {"a": [1, 0], "b": [1, 1, 1, 1, 0, 0]}, columns)
    place, asked = placed(model, "bfcl", "plain")
    found = estimate(place, asked["bfcl"], "base")
    assert found is not None
    assert found.mean == pytest.approx((1 / 2 + 4 / 6) / 2)
    assert error(found, asked) == pytest.approx(math.sqrt(0.25 / 1 + (2 / 9) / 5) / 2)
    other, _ = placed(model, "bfcl", "all")
    whole = estimate(other, asked["bfcl"], "base")
    assert whole is not None
    assert whole.mean == pytest.approx(5 / 8)


@pytest.mark.parametrize("combine", ["items", "groups"])
def test_one_column_says_what_the_evaluation_itself_said(made: Callable[..., Made], combine: str) -> None:
    rng = np.random.default_rng(3)
    scores = [(float(value), float(weight)) for value, weight in zip(rng.random(9), rng.integers(1, 9, 9), strict=True)]
    groups = {"a": scores[:4], "b": scores[4:]} if combine == "groups" else {"a": scores}
    column = Column("it", "right", "it", combine=combine)  # type: ignore[arg-type]
    place, asked = placed(made("base").suite("code", "code", groups, [column]), "code", "it")
    found = estimate(place, asked["code"], "base")
    assert found is not None
    assert found.mean == pytest.approx(place.facts.mean)
    assert error(found, asked) == pytest.approx(place.facts.error)


def test_items_that_a_metric_does_not_count_are_left_out(made: Callable[..., Made]) -> None:
    uncounted: dict[str, object] = {"other": [1.0, 1.0]}
    place, asked = placed(made("base").suite("code", "code", {"": [1, 0, 1, uncounted]}), "code")
    found = estimate(place, asked["code"], "base")
    assert found is not None
    assert found.mean == pytest.approx(2 / 3)


def test_a_metric_that_counts_nothing_has_no_mean(made: Callable[..., Made]) -> None:
    place, asked = placed(made("base").suite("code", "code", {"": [(1.0, 0.0), (0.0, 0.0)]}), "code")
    assert estimate(place, asked["code"], "base") is None


def test_a_paired_difference_is_surer_than_its_parts(made: Callable[..., Made]) -> None:
    """Both right on the same 8 of 10 items, one on an 9th besides: the difference varies as one item in ten does."""
    made("one").suite("gsm8k", "maths", {"": [1] * 8 + [0, 0]})
    made("two").suite("gsm8k", "maths", {"": [1] * 8 + [1, 0]})
    results = {name: load_results(made(name).folder) for name in ("one", "two")}
    asked = {"gsm8k": asked_of("gsm8k", results)}
    place = Place("gsm8k", "gsm8k", results["one"].record.suites["gsm8k"].columns["gsm8k"])
    one, two = (estimate(place, asked["gsm8k"], row) for row in ("one", "two"))
    assert one is not None
    assert two is not None
    difference = two - one
    assert difference.mean == pytest.approx(0.1)
    assert error(difference, asked) == pytest.approx(math.sqrt(0.1 * 0.9 / 9))
    assert error(difference, asked) < error(one, asked)
    assert covariance(one, two, asked) > 0


def test_a_mean_over_suites_adds_variances_and_one_over_columns_of_the_same_items_does_not(
    made: Callable[..., Made],
) -> None:
    twice = [{"right": [v, 1.0], "again": [v, 1.0]} for v in (1.0, 1.0, 0.0, 0.0)]
    columns = [Column("right", "right", "right"), Column("again", "again", "again")]
    model = made("base").suite("code", "code", {"": twice}, columns).suite("gsm8k", "maths", {"": [1, 1, 0, 0]})
    (right, asked), (again, _), (other, more) = (
        placed(model, "code", "right"), placed(model, "code", "again"), placed(model, "gsm8k"),
    )  # fmt: skip
    every = asked | more
    one, same, far = (estimate(place, every[place.suite], "base") for place in (right, again, other))
    assert one is not None
    assert same is not None
    assert far is not None
    alone = error(one, every)
    assert error(mean_of([one, same]), every) == pytest.approx(alone)
    assert error(mean_of([one, far]), every) == pytest.approx(alone / math.sqrt(2))
