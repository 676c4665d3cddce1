"""Singular vectors without a singular value decomposition are those of one; of what is not there nothing is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.methods import lanczos, spectra
from agentmerge.methods.arrays import Arrays, TorchArrays
from agentmerge.methods.spectra import Factors

if TYPE_CHECKING:
    from agentmerge.tensors import Array

SHAPES = [(90, 40), (40, 90), (64, 64)]
POLAR = {"eigenvectors": spectra.polar, "newton_schulz": spectra.newton_schulz}


def random(shape: tuple[int, int], seed: int = 0, density: float = 0.5) -> Array:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(shape) * (rng.random(shape) < density))


def of_rank(shape: tuple[int, int], rank: int) -> Array:
    return random((shape[0], rank), 1) @ random((rank, shape[1]), 2)


def decomposed(matrix: Array, count: int) -> Factors:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return Factors(left[:, :count], values[:count], right[:count].T)


def product(factors: Factors) -> Array:
    return np.asarray((factors.left * factors.values) @ factors.right.T)


def assert_close(found: Array, expected: Array, share: float) -> None:
    assert np.linalg.norm(found - expected) <= share * np.linalg.norm(expected)


@pytest.mark.parametrize("way", POLAR)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_polar_factor_is_that_of_a_decomposition(shape: tuple[int, int], way: str) -> None:
    matrix = random(shape)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    found = POLAR[way](matrix.copy(), Arrays())
    assert_close(found.factor, left @ right, 1e-11)
    assert found.rank == min(shape)
    assert found.total == pytest.approx(values.sum(), rel=1e-12)


@pytest.mark.parametrize("way", POLAR)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_polar_factor_of_a_low_rank_is_0_beyond_it(shape: tuple[int, int], way: str) -> None:
    matrix = of_rank(shape, 7)
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    found = POLAR[way](matrix.copy(), Arrays())
    assert_close(found.factor, left[:, :7] @ right[:7], 1e-8)
    assert found.rank == 7


@pytest.mark.parametrize("way", POLAR)
def test_the_polar_factor_of_nothing_is_nothing(way: str) -> None:
    found = POLAR[way](np.zeros((5, 8)), Arrays())
    assert (found.rank, found.total) == (0, 0)
    assert not found.factor.any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 9])
def test_the_leading_triples_are_those_of_a_decomposition(shape: tuple[int, int], count: int) -> None:
    matrix = random(shape)
    found, expected = spectra.leading(matrix, count, Arrays()), decomposed(matrix, count)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12)
    assert_close(product(found), product(expected), 1e-11)


def test_what_a_low_rank_lacks_is_0_on_both_sides() -> None:
    found = spectra.leading(of_rank((40, 30), 3), 5, Arrays())
    assert (found.values[:3] > 0).all()
    assert not found.values[3:].any()
    assert not found.left[:, 3:].any()
    assert not found.right[:, 3:].any()


@pytest.mark.parametrize("shape", [(300, 220), (220, 300), (200, 200)])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("limit", [4096, 1], ids=["gram", "matrix"])
def test_lanczos_finds_the_leading_triples(
    shape: tuple[int, int], count: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of matrices in which nothing sticks out, the hard case, and of one with a spike."""
    monkeypatch.setattr(lanczos, "GRAM", limit)
    monkeypatch.setattr(lanczos, "leading", None)  # not by all eigenvectors
    plain = random(shape)
    for matrix in (plain, plain + 40 * np.outer(random((shape[0], 1)), random((1, shape[1]), 5)) / 100):
        found = lanczos.first(matrix, count, Arrays())
        assert_close(product(found), product(decomposed(matrix, count)), 1e-7)


@pytest.mark.parametrize("shape", [(200, 150), (150, 200)])
def test_lanczos_ends_where_the_rank_does(shape: tuple[int, int]) -> None:
    """A breakdown on the left side leaves a bidiagonal of one more column."""
    matrix = of_rank(shape, 3)
    found = lanczos.golub_kahan(matrix, 3, Arrays())
    assert found is not None
    assert_close(product(found), matrix, 1e-10)
    for factors in (lanczos.golub_kahan(matrix, 4, Arrays()), lanczos.first(matrix, 4, Arrays())):
        if factors is not None:
            assert_close(product(factors), matrix, 1e-10)
            assert factors.values[3] == 0
            assert not factors.left[:, 3].any()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (1, 5), (5, 1)])
def test_lanczos_may_use_up_a_small_matrix(shape: tuple[int, int]) -> None:
    matrix = random(shape, density=1.0)
    found = lanczos.golub_kahan(matrix, min(shape), Arrays(), tolerance=0.0)
    assert found is not None
    assert_close(product(found), matrix, 1e-12)


def test_of_equal_singular_values_lanczos_sees_one_and_all_are_found() -> None:
    matrix = np.zeros((160, 160))
    matrix[3, 5] = matrix[7, 2] = 2.0
    matrix[100, 100] = 1.0
    assert lanczos.golub_kahan(matrix, 3, Arrays()) is None
    assert_close(product(lanczos.first(matrix, 3, Arrays())), matrix, 1e-12)
    assert lanczos.golub_kahan(np.zeros((5, 5)), 1, Arrays()) is None


def test_the_start_is_fixed_and_has_no_zero() -> None:
    vector = lanczos.fixed_vector(5000)
    assert np.linalg.norm(vector) == pytest.approx(1)
    assert np.abs(vector).min() > 0.2 / np.sqrt(5000)
    assert abs(vector.sum()) < 2


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_stays_so_and_ends_no_run(number: float) -> None:
    matrix = random((150, 140))
    matrix[3, 4] = number
    with np.errstate(all="ignore"):
        assert not np.isfinite(spectra.polar(matrix.copy(), Arrays()).factor).all()
        assert not np.isfinite(lanczos.first(matrix, 1, Arrays()).left).all()
        assert not np.isfinite(spectra.newton_schulz(matrix.copy(), Arrays()).factor).all()


@pytest.mark.parametrize("size", [1e-40, 1e30])
def test_tiny_and_huge_numbers_are_no_trouble(size: float) -> None:
    matrix = random((50, 30))
    for way in POLAR.values():
        assert_close(way(size * matrix, Arrays()).factor, way(matrix.copy(), Arrays()).factor, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(300, 220), (220, 300)])
def test_torch_finds_the_same(shape: tuple[int, int]) -> None:
    pytest.importorskip("torch")
    matrix, there = random(shape), TorchArrays("cpu")

    def over_there() -> Any:
        return there.put(matrix.copy(), "float64")

    for way in POLAR.values():
        assert_close(way(over_there(), there).factor.numpy(), way(matrix.copy(), Arrays()).factor, 1e-11)
    for count in (1, 40):
        found = lanczos.first(over_there(), count, there)
        found = Factors(*(part.numpy() for part in found))
        assert_close(product(found), product(decomposed(matrix, count)), 1e-7)
