"""SVC scales the singular directions of any merge as its formula says, from the update that was never rounded."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.errors import RecipeError
from agentmerge.methods import layers
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.svc import Svc
from agentmerge.survey.reported import collecting
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import Sources, assert_contract, assert_same_bits, read_checkpoint, survey_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentmerge.tensors import Array

NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(autouse=True)
def on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, whatever this one has."""
    monkeypatch.setattr(layers, "cuda", lambda: None)


def vectors(shape: tuple[int, ...], agents: int = 3, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    found = 1e-3 * rng.standard_normal((agents, *shape)) * (rng.random((agents, *shape)) < 0.5)
    return list(found.astype(np.float32))


def stack_of(taus: Sequence[Array], name: str = NAME, base: float = 0.0) -> Stack:
    block = Block(TensorSpec(name, "F32", taus[0].shape), 0, taus[0].size)
    start = np.full(taus[0].size, base, np.float32)
    return Stack(block, start, tuple(start + t.reshape(-1) for t in taus), tuple("abcdef"[: len(taus)]))


def merged(method: Svc, stack: Stack) -> Array:
    return method.merge(stack, survey_of(method, [stack])).reshape(stack.block.tensor.shape)


def svc(then: Any = "task_arithmetic", **settings: Any) -> Svc:
    return Svc(then=resolve_method(then), **settings)


def by_the_book(update: Array, taus: Sequence[Array], alpha: float) -> Array:
    """The formula of the file's head, direction by direction."""
    left, values, right = np.linalg.svd(update.astype(np.float64), full_matrices=False)
    found = np.zeros(update.shape)
    for u, s, v in zip(left.T, values, right, strict=True):
        along = [u @ tau.astype(np.float64) for tau in taus]
        kept = [max(alpha, float(s * v @ x) / max(float(x @ x), 1e-12)) for x in along]
        found += len(taus) / sum(kept) * s * np.outer(u, v)
    return found


@pytest.mark.parametrize("alpha", [0.1, 1.0])
@pytest.mark.parametrize("shape", [(30, 20), (12, 40), (16, 16)])
@pytest.mark.parametrize("then", ["task_arithmetic", "ram", {"name": "ties", "density": 0.5}, "tsv_m"], ids=str)
def test_it_is_what_the_formula_gives(shape: tuple[int, int], alpha: float, then: Any) -> None:
    taus = vectors(shape)
    inner = resolve_method(then)
    update = inner.merge(stack_of(taus), survey_of(inner, [stack_of(taus)])).reshape(shape)
    found = merged(svc(then, alpha=alpha), stack_of(taus))
    np.testing.assert_allclose(found, by_the_book(update, taus, alpha), rtol=0, atol=1e-6 * np.abs(found).max())


def test_agents_that_keep_the_same_everywhere_are_scaled_as_by_calibrate() -> None:
    (tau,) = vectors((20, 12), agents=1)
    for share in (0.25, 0.5):
        then = {"name": "task_arithmetic", "scale": share / 3}
        found = merged(svc(then, alpha=0.1), stack_of([tau, tau, tau]))
        np.testing.assert_allclose(found, tau, rtol=0, atol=1e-6 * np.abs(tau).max())


def test_at_alpha_1_it_only_shrinks() -> None:
    taus = vectors((20, 12))
    plain = np.linalg.svd(sum(taus) / 3)[1]
    assert (np.linalg.svd(merged(svc(alpha=1), stack_of(taus)))[1] <= plain * (1 + 1e-6)).all()


def test_alpha_is_that_of_public_settings_where_it_is_not_said() -> None:
    assert svc().least == 0.1
    assert svc("ties").least == 0.1
    assert svc("tsv_m").least == svc("wudi").least == 1.0
    assert svc({"name": "calibrate", "then": "tsv_m"}).least == 1.0
    assert svc("tsv_m", alpha=0.5).least == 0.5


def test_the_base_takes_no_part_in_what_is_calibrated() -> None:
    """Where base + update in float32 loses digits, merged - base would show another update."""
    taus = vectors((20, 12))
    method, stack = svc(), stack_of(taus, base=256.0)
    true = [agent - stack.base for agent in stack.agents]  # what is left of the task vectors
    expected = merged(method, stack_of([row.reshape(20, 12) for row in true]))
    assert_same_bits(merged(method, stack), np.float32(256.0) + expected, "merged")


@pytest.mark.parametrize(
    "then", ["iso_c", "iso_cts", {"name": "calibrate", "then": "iso_c"}, {"name": "dare", "then": "iso_cts"}], ids=str
)
def test_around_methods_of_equal_singular_values_it_is_refused(tiny: Sources, tmp_path: Path, then: Any) -> None:
    with pytest.raises(RecipeError, match=r"then: .*all singular values of a merge by iso_c or iso_cts are equal"):
        merge(tiny.recipe({"name": "svc", "then": then}), tmp_path / "out")
    rules = [{"tensors": "*mlp*", "then": then}]
    with pytest.raises(RecipeError, match="all singular values"):
        merge(tiny.recipe({"name": "svc", "then": "ties"}, rules=rules), tmp_path / "out")


def test_equal_singular_values_are_told() -> None:
    tau = np.zeros((6, 5), np.float32)
    tau[0, 1] = tau[3, 3] = 1e-3
    with collecting() as facts:
        merged(svc(), stack_of([tau, tau]))
    assert facts == {"tied": {NAME: 1.0}}
    with collecting() as facts:
        merged(svc(), stack_of(vectors((6, 5))))
    assert facts == {}


def test_what_is_no_matrix_is_the_inner_methods(tiny: Sources, tmp_path: Path) -> None:
    merge(tiny.recipe({"name": "svc", "then": "ram", "linear": "*q_proj.weight"}), tmp_path / "some")
    merge(tiny.recipe({"name": "ram"}), tmp_path / "ram")
    found, inner = read_checkpoint(tmp_path / "some"), read_checkpoint(tmp_path / "ram")
    other = {name for name, array in found.items() if (array != inner[name]).any()}
    assert other == {name for name in found if name.endswith("q_proj.weight")}


def test_a_transposed_matrix_has_its_outputs_on_the_other_side() -> None:
    taus = vectors((20, 12))
    turned = [np.ascontiguousarray(tau.T) for tau in taus]
    plain = merged(svc(), stack_of(taus))
    assert not np.allclose(merged(svc(), stack_of(turned)).T, plain, rtol=0, atol=1e-6)
    told = merged(svc(transposed="*up_proj*"), stack_of(turned))
    np.testing.assert_allclose(told.T, plain, rtol=0, atol=1e-9)


def test_experts_are_calibrated_one_by_one() -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    experts = [vectors((6, 8), seed=seed) for seed in range(3)]
    together = merged(svc("ram"), stack_of(np.stack(experts, axis=1), name))
    for number, taus in enumerate(experts):
        assert_same_bits(together[number], merged(svc("ram"), stack_of(taus)), f"expert {number}")


def test_a_part_of_a_matrix_is_refused() -> None:
    stack = stack_of(vectors((64, 2048)))
    with pytest.raises(RecipeError, match=f"'svc' must see {NAME} whole"):
        svc().merge(next(stack.pieces(2048)), Survey())


@pytest.mark.parametrize("kind", ["zero", "opposite", "rank one", "one element", "huge", "tiny"])
def test_hostile_matrices_give_finite_numbers(kind: str) -> None:
    a, b = vectors((20, 12), agents=2)
    taus = {
        "zero": [0 * a, 0 * a],
        "opposite": [a, -a],
        "rank one": [np.outer(a[:, 0], a[0]).astype("f4"), 0 * b],
        "one element": [np.where(np.arange(a.size).reshape(a.shape) == 3, 1e-3, 0).astype("f4"), 0 * b],
        "huge": [(1e18 * a).astype("f4"), (1e18 * b).astype("f4")],
        "tiny": [(1e-38 * a).astype("f4"), (1e-38 * b).astype("f4")],
    }[kind]
    stack = stack_of(taus, base=-0.0)
    found = svc().merge(stack, Survey())
    assert np.isfinite(found).all()
    if kind in ("zero", "opposite"):
        assert_same_bits(found, stack.base, kind)


@pytest.mark.parametrize("then", ["ram_plus_auto", {"name": "calibrate", "then": "ram"}], ids=str)
def test_an_inner_method_that_warns_of_its_stored_result_does_not_warn_of_ours(
    tiny: Sources, tmp_path: Path, then: Any
) -> None:
    record = merge(tiny.recipe({"name": "svc", "then": then}, output={"dtype": "float32"}), tmp_path / "out")
    assert record.warnings == []
    assert {agent.scale for agent in record.survey.agents.values()} == {None}


@pytest.mark.parametrize("shape", [(500, 160), (160, 500), (220, 220)])
def test_a_matrix_takes_no_more_memory_than_the_plan_says(shape: tuple[int, int]) -> None:
    method, stack = svc(), stack_of(vectors(shape))
    tracemalloc.start()
    method.merge(stack, Survey())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told = method.work(stack.block.tensor, 3).bytes
    assert 0.3 * told < peak <= told + 4 * stack.base.size  # and the result, which the engine counts


@pytest.mark.slow
@pytest.mark.parametrize("then", ["ties", "tsv_m", {"name": "dare", "then": "ram_plus_auto"}], ids=str)
def test_the_contract_is_kept_around_other_methods(then: Any) -> None:
    assert_contract(svc(then), weights=(1.0, 0.5, 0.25))
