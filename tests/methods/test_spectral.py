"""Iso-C, Iso-CTS and TSV-M: which tensors they take, what hostile matrices give, what the record is told, memory."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.engine import estimate
from agentmerge.engine.preflight import planned
from agentmerge.machine import available_cpus
from agentmerge.methods import layers
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.iso import IsoC, IsoCts
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.resmerge import ResMerge
from agentmerge.methods.tsv_m import TsvM
from agentmerge.methods.vectors import Vectors
from agentmerge.recipe import Recipe
from agentmerge.survey.reported import Facts, collecting
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import assert_contract, assert_same_bits, make_agents, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentmerge.methods.spectral import Spectral
    from agentmerge.tensors import Array

NAME = "model.layers.0.mlp.up_proj.weight"
METHODS: dict[str, Spectral] = {
    "iso_c": IsoC(),
    "iso_cts": IsoCts(),
    "tsv_m": TsvM(),
    "tsv_m all": TsvM(ranks="all"),
    "tsv_m plain": TsvM(orthogonal=False),
    "resmerge": ResMerge(),
}
SPREADING = ["iso_c", "iso_cts", "tsv_m"]


@pytest.fixture(autouse=True)
def on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, whatever this one has."""
    monkeypatch.setattr(layers, "cuda", lambda: None)


def vectors(shape: tuple[int, ...], agents: int = 3, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    found = 1e-3 * rng.standard_normal((agents, *shape)) * (rng.random((agents, *shape)) < 0.5)
    return list(found.astype(np.float32))


def stack_of(taus: Sequence[Array], name: str = NAME, weights: tuple[float, ...] = (), base: float = 0.0) -> Stack:
    block = Block(TensorSpec(name, "F32", taus[0].shape), 0, taus[0].size)
    start = np.full(taus[0].size, base, np.float32)
    return Stack(block, start, tuple(start + t.reshape(-1) for t in taus), tuple("abcdefgh"[: len(taus)]), weights)


def merged(method: Spectral, stack: Stack) -> Array:
    return method.merge(stack, Survey()).reshape(stack.block.tensor.shape)


def facts(method: Spectral, taus: Sequence[Array]) -> Facts:
    with collecting() as found:
        merged(method, stack_of(taus))
    return found


# hostile matrices

HOSTILE: dict[str, Callable[[Array, Array], list[Array]]] = {
    "one unchanged": lambda a, b: [a, np.zeros_like(a), b],
    "rank one": lambda a, b: [np.outer(a[:, 0], a[0]).astype("f4"), b],
    "all of rank one": lambda a, b: [np.outer(a[:, i], a[i]).astype("f4") for i in range(3)],
    "identical": lambda a, b: [a, a],
    "opposite": lambda a, b: [a, -a],
    "one element": lambda a, b: [a, np.where(np.arange(a.size).reshape(a.shape) == 3, 1e-3, 0).astype("f4")],
    "far apart in size": lambda a, b: [a, (1e6 * b).astype("f4")],
    "tiny": lambda a, b: [(1e-38 * a).astype("f4"), (1e-38 * b).astype("f4")],
    "huge": lambda a, b: [(1e18 * a).astype("f4"), (1e18 * b).astype("f4")],
    "one agent": lambda a, b: [a],
    "more agents than directions": lambda a, b: [a, b, a + b, a - b, a, b, b - a, b],
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", [(20, 12), (7, 30)])
def test_hostile_matrices_give_finite_numbers_of_the_agents_size(shape: Any, name: str, kind: str) -> None:
    taus = HOSTILE[kind](*vectors(shape, agents=2))
    found = merged(METHODS[name], stack_of(taus)).astype(np.float64)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found) <= 2 * sum(float(np.linalg.norm(tau.astype("f8"))) for tau in taus)


@pytest.mark.parametrize("name", METHODS)
def test_zero_task_vectors_leave_the_base_bit_for_bit(name: str) -> None:
    stack = stack_of([np.zeros((4, 6), np.float32)] * 2, base=-0.0)
    assert_same_bits(METHODS[name].merge(stack, Survey()), stack.base, name)


def test_opposite_agents_cancel() -> None:
    (a,) = vectors((20, 12), agents=1)
    for method in (IsoC(), TsvM(), TsvM(ranks="all")):
        assert np.abs(merged(method, stack_of([a, -a]))).max() < 1e-8 * np.abs(a).max()


def test_identical_agents_get_their_truncated_task_vector_from_tsv_m() -> None:
    (a,) = vectors((20, 12), agents=1)
    left, values, right = np.linalg.svd(a.astype(np.float64), full_matrices=False)
    expected = (left[:, :6] * values[:6]) @ right[:6]
    np.testing.assert_allclose(merged(TsvM(), stack_of([a, a])), expected, rtol=0, atol=1e-6 * np.abs(a).max())


def test_all_singular_values_of_iso_c_and_iso_cts_are_equal() -> None:
    taus = vectors((30, 20))
    for method in (IsoC(), IsoCts(), IsoCts(common_space_fraction=0.0)):
        values = np.linalg.svd(merged(method, stack_of(taus)).astype(np.float64))[1]
        np.testing.assert_allclose(values, values[0], rtol=1e-5)


def test_at_fraction_1_iso_cts_is_iso_c() -> None:
    stack = stack_of(vectors((30, 20)))
    np.testing.assert_allclose(merged(IsoCts(common_space_fraction=1), stack), merged(IsoC(), stack), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("side", "agents", "own"), [(64, 3, 4), (64, 2, 6), (10, 4, 0), (15, 2, 2)])
def test_the_agents_divide_what_is_left_rounded_to_even(side: int, agents: int, own: int) -> None:
    assert IsoCts().own_directions(side, agents) == own
    assert IsoCts(common_space_fraction=0).own_directions(20, 3) == 6  # 7 each would be 21


@pytest.mark.parametrize("name", SPREADING)
def test_a_scale_and_weights_multiply(name: str) -> None:
    a, b, c = vectors((20, 12))
    method = METHODS[name]
    doubled = method.varied({"scale": 2.0})
    assert isinstance(doubled, type(method))
    np.testing.assert_allclose(merged(doubled, stack_of([a, b, c])), 2 * merged(method, stack_of([a, b, c])), rtol=1e-6)
    weighted = merged(method, stack_of([a, b, c], weights=(2.0, -1.0, 0.5)))
    assert_same_bits(weighted, merged(method, stack_of([2 * a, -b, c / 2])), name)


# what the record is told


def test_missing_directions_are_told_and_get_no_update(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = {NAME: np.zeros((32, 24), np.float32), "model.norm.weight": np.zeros(24, np.float32)}
    sources = make_agents(tmp_path / "in", base=base)
    for path in sources.agents.values():  # all agents change the same eight rows
        moved = np.zeros((32, 24), np.float32)
        moved[:8] = rng.standard_normal((8, 24))
        write_checkpoint(path, {NAME: moved, "model.norm.weight": np.ones(24, np.float32)})
    for name, rank in (("iso_c", 8), ("tsv_m", 24)):
        record = merge(sources.recipe({"name": name}, run={"workers": 2}), tmp_path / name)
        warnings = [text for text in record.warnings if text.startswith(name)]
        if rank == 24:  # every agent has the eight directions that are its share
            assert (record.learned, warnings) == ({}, [])
            continue
        assert record.learned[name] == {"rank_deficient": {"matrices": 1, "first": {NAME: 8.0}}}
        assert f"1 matrix with fewer directions than the method spreads its update over ({NAME})" in warnings[0]
        assert not read_checkpoint(tmp_path / name)[NAME][8:].any()


def test_an_agent_of_few_directions_is_told_by_tsv_m() -> None:
    a, b = vectors((20, 12), agents=2)
    few = np.where(np.arange(20)[:, None] < 2, a, 0).astype("f4")
    assert facts(TsvM(), [few, b]) == {"rank_deficient": {NAME: 8.0}}  # 2 + 6 of 12
    assert facts(TsvM(), [a, b]) == {}


def test_of_experts_each_matrix_is_told_by_its_number() -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    experts = [vectors((6, 8), agents=2, seed=seed) for seed in range(4)]
    experts[2] = [np.zeros((6, 8), np.float32), np.outer(np.ones(6), np.arange(8)).astype("f4")]
    stack = stack_of(np.stack(experts, axis=1), name)
    with collecting() as found:
        together = merged(IsoC(), stack)
    assert found == {"rank_deficient": {f"{name}[2]": 1.0}}
    for number, taus in enumerate(experts):
        assert_same_bits(together[number], merged(IsoC(), stack_of(taus)), f"expert {number}")


# which tensors


@pytest.mark.parametrize(
    ("name", "shape", "iso", "resmerge"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (4, 8), True, True),
        ("model.layers.0.mlp.gate.weight", (4, 8), True, True),
        ("model.embed_tokens.weight", (40, 8), True, False),
        ("transformer.WTE.weight", (40, 8), True, False),
        ("lm_head.weight", (40, 8), True, False),
        ("text_projection.weight", (4, 8), False, True),
        ("model.layers.0.mlp.experts.down_proj", (3, 4, 8), True, True),
        ("model.layers.0.linear_attn.conv1d.weight", (8, 4, 4), False, False),
        ("model.layers.0.self_attn.q_proj.bias", (8,), False, False),
        ("model.layers.0.self_attn.q_proj.weight", (1, 8), False, False),
    ],
)
def test_any_matrix_is_merged_but_for_the_names_that_public_codes_leave_out(
    name: str, shape: tuple[int, ...], iso: bool, resmerge: bool
) -> None:
    spec = TensorSpec(name, "BF16", shape)
    assert (IsoC().is_linear(spec), TsvM().is_linear(spec), ResMerge().is_linear(spec)) == (iso, iso, resmerge)
    assert IsoC().work(spec, 2).reach == ("matrix" if iso else "element")


def test_the_user_says_which_matrices_are_merged() -> None:
    method = resolve_method({"name": "iso_c", "linear": "*proj.weight,*.conv1d.weight", "excluded": "*q_proj*"})
    assert isinstance(method, IsoC)
    taken = {"a.k_proj.weight": (4, 8), "a.conv1d.weight": (2, 4, 8)}
    assert all(method.is_linear(TensorSpec(name, "BF16", shape)) for name, shape in taken.items())
    assert not method.is_linear(TensorSpec("a.q_proj.weight", "BF16", (4, 8)))
    assert not method.is_linear(TensorSpec("a.gate.weight", "BF16", (4, 8)))


def test_only_iso_cts_asks_which_side_is_the_left_one() -> None:
    taus = vectors((20, 12))
    turned = [np.ascontiguousarray(tau.T) for tau in taus]
    for name in SPREADING:
        method = METHODS[name]
        plain, stored = merged(method, stack_of(taus)), merged(method, stack_of(turned))
        same = np.allclose(plain, stored.T, rtol=0, atol=1e-8)
        assert same == (name != "iso_cts"), name
        told = method.varied({"transposed": "*up_proj*"})
        assert isinstance(told, type(method))
        np.testing.assert_allclose(merged(told, stack_of(turned)).T, plain, rtol=0, atol=1e-8)


# memory, cost, contract


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", [(500, 160), (160, 500), (220, 220)])
def test_a_matrix_takes_no_more_memory_than_the_plan_says(name: str, shape: tuple[int, int]) -> None:
    method, stack = METHODS[name], stack_of(vectors(shape))
    tracemalloc.start()
    method.update(Vectors(stack, Arrays(), turned=False), Arrays())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told = method.matrix_bytes(*shape, 3)
    assert 0.3 * told < peak <= told


@pytest.mark.parametrize("name", [*SPREADING, "resmerge"])
def test_the_memory_estimate_counts_the_largest_matrix_of_each_processor(tmp_path: Path, name: str) -> None:
    base = {NAME: np.ones((300, 200), np.float32), "a.k_proj.weight": np.ones((20, 20), np.float32)}
    sources = make_agents(tmp_path / "in", base=base)
    with planned(Recipe.parse(sources.recipe({"name": name}, run={"workers": 2}))) as plan:
        largest = METHODS[name].matrix_bytes(300, 200, 3) + 60_000 * 4 * 6
        assert estimate.memory_bytes(plan) - estimate.resident(plan) == largest * min(available_cpus(), 2)


def test_the_whole_of_7b_is_within_the_operations_that_are_told() -> None:
    """Eigenvectors count as the products of matrices that take as long."""
    hidden, inner = 3584, 18944
    shapes = [(hidden, hidden)] * 2 + [(512, hidden)] * 2 + [(inner, hidden)] * 2 + [(hidden, inner)]
    tflop = {
        name: 28 * sum(METHODS[name].matrix_flop(*shape, 3) for shape in shapes) / 1e12
        for name in ("iso_c", "iso_cts", "tsv_m", "resmerge")
    }
    assert 60 < tflop["resmerge"] < 160
    assert 90 < tflop["iso_c"] < 250
    assert 400 < tflop["tsv_m"] < 1000
    assert 600 < tflop["iso_cts"] < 1500


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_contract_is_kept_with_weights(name: str) -> None:
    assert_contract(METHODS[name], weights=(1.0, 0.5, -0.25))
