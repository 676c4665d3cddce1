"""Overlap by chance, against simulation and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge.analysis.chance import against_chance, expected_exactly


def test_independent_agents_are_at_chance() -> None:
    random = np.random.default_rng(0)
    n = 200_000
    a, b = random.random(n) < 0.3, random.random(n) < 0.5
    found = against_chance(int((a & b).sum()), np.array([n]), np.array([a.sum()]), np.array([b.sum()]))
    assert found.ratio == pytest.approx(1, abs=0.02)
    assert found.z is not None
    assert abs(found.z) < 4


def test_strata_explain_an_overlap_that_only_the_grid_makes() -> None:
    elements, changed = np.array([1000, 1000]), np.array([900, 100])
    overlap = 900 * 900 / 1000 + 100 * 100 / 1000
    assert against_chance(overlap, elements, changed, changed).ratio == pytest.approx(1)
    assert against_chance(overlap, elements.sum(keepdims=True), *[changed.sum(keepdims=True)] * 2).ratio == 1.64


def test_z_uses_the_hypergeometric_variance() -> None:
    found = against_chance(6, np.array([10]), np.array([5]), np.array([6]))
    assert found.expected == 3
    assert found.z == pytest.approx(3 / np.sqrt(5 * 6 * 5 * 4 / (100 * 9)))


def test_nothing_changed_has_no_ratio() -> None:
    assert against_chance(0, np.array([10, 0]), np.array([0, 0]), np.array([3, 0])) == (0, None, None)


def test_the_number_of_agents_that_meet_by_chance() -> None:
    """Densities 1/2, 1/4: of the first agent's 8 changes, the other agent changes 2."""
    exactly = expected_exactly(np.array([16]), np.array([[8], [4]]))
    assert exactly.tolist() == [[6, 2], [2, 2]]
    three = expected_exactly(np.array([8]), np.array([[4], [4], [4]]))
    assert three[0].tolist() == [1, 2, 1]
