"""Fieller's interval of a quotient."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge.eval.compare.retained import Z, fieller


def test_its_ends_are_where_the_difference_is_just_told_from_0() -> None:
    found = fieller(0.12, 0.2, (0.0004, 0.0005), 0.0002)
    assert found is not None
    assert found.value == pytest.approx(0.6)
    for r in (found.low, found.high):
        variance = 0.0004 - 2 * r * 0.0002 + r * r * 0.0005
        assert abs(0.12 - r * 0.2) == pytest.approx(Z * variance**0.5)
    assert found.low < 0.6 < found.high


def test_there_is_none_where_the_gain_may_be_0() -> None:
    error = 0.02
    assert fieller(0.01, Z * error * 0.999, (0.0001, error**2), 0.0) is None
    assert fieller(0.01, Z * error * 1.001, (0.0001, error**2), 0.0) is not None


def test_a_sure_gain_leaves_the_usual_interval() -> None:
    found = fieller(0.1, 0.5, (0.01**2, 0.0), 0.0)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.2 - Z * 0.02, 0.2 + Z * 0.02))


def test_it_holds_the_true_quotient_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    cov = np.array([[0.0009, 0.0004], [0.0004, 0.0009]])
    draws = rng.multivariate_normal([0.06, 0.15], cov, size=4000)
    found = [fieller(upper, lower, (0.0009, 0.0009), 0.0004) for upper, lower in draws]
    held = [q is None or q.low <= 0.4 <= q.high for q in found]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)
