"""Products of matrices that are mostly zeros."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.methods import sparse
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.interference import Held, solve
from agentmerge.testing import assert_same_bits


def matrix(shape: tuple[int, int], density: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < density, rng.normal(0, 1e-3, shape), 0.0)


@pytest.mark.parametrize("shape", [(1, 1), (3, 50), (40, 7), (65, 64), (200, 33)])
@pytest.mark.parametrize("density", [0.0, 0.03, 1.0])
def test_the_loops_equal_the_definitions(
    shape: tuple[int, int], density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = matrix(shape, density)
    right = matrix((shape[1], 21), 1.0, seed=1)
    gram, product = sparse.gram(left), sparse.times(left, right)
    np.testing.assert_allclose(gram, left.T @ left, rtol=0, atol=1e-18)
    np.testing.assert_allclose(product, left @ right, rtol=0, atol=1e-18)
    monkeypatch.setattr(kernels, "compiling", lambda: False)
    assert_same_bits(sparse.gram(left), gram, "gram")
    assert_same_bits(sparse.times(left, right), product, "times")


def test_sparse_task_vectors_give_what_dense_products_give(monkeypatch: pytest.MonkeyPatch) -> None:
    taus = [matrix((90, 40), density, seed) for seed, density in enumerate((0.01, 0.02, 0.4))]
    found = solve(Held(taus), ridge=0.01, form="input", arrays=Arrays())
    monkeypatch.setattr(sparse, "is_sparse", lambda matrix: False)
    dense = solve(Held(taus), ridge=0.01, form="input", arrays=Arrays())
    assert np.linalg.norm(found - dense) < 1e-12 * np.linalg.norm(dense)


def test_the_transposed_of_a_matrix_is_taken_too() -> None:
    left = matrix((33, 20), 0.05).T
    np.testing.assert_allclose(sparse.gram(left), left.T @ left, rtol=0, atol=1e-18)
