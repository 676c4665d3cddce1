"""WUDI gives what the official routine gives, and minimises what it says it minimises."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.cli.tables import plan_summary
from agentmerge.engine import estimate
from agentmerge.engine.preflight import planned
from agentmerge.errors import RecipeError
from agentmerge.machine import available_cpus
from agentmerge.methods import arrays as arrays_module
from agentmerge.methods import interference, layers
from agentmerge.methods.arrays import Arrays, speed
from agentmerge.methods.base import Work
from agentmerge.methods.interference import Form, Held, Interference, descend, solve
from agentmerge.methods.torch_arrays import TorchArrays
from agentmerge.methods.vectors import Vectors
from agentmerge.methods.wudi import Wudi
from agentmerge.recipe import Recipe
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import LEAF, Block, Stack, TensorSpec
from agentmerge.testing import Sources, assert_contract, assert_same_bits, make_agents, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentmerge.tensors import Array

REFERENCE = "wudi__official_routine_proj_weights_only.safetensors"
NAMES = ("code", "memory", "tool")
LINEAR = "model.layers.0.mlp.up_proj.weight"
SHAPES = [(3, 50), (40, 7), (16, 16), (2, 9)]


@pytest.fixture(autouse=True)
def on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, whatever this one has."""
    monkeypatch.setattr(layers, "cuda", lambda: None)


def golden_sources(root: Path) -> Sources:
    return Sources(root / "base", {name: root / name for name in NAMES})


def golden_vectors(root: Path) -> dict[str, list[Array]]:
    """The task vectors of every linear layer, in the agents' order."""
    base, *agents = (read_checkpoint(root / name) for name in ("base", *NAMES))
    names = read_checkpoint(root / "expected" / REFERENCE)
    return {n: [agent[n].astype(np.float32) - base[n].astype(np.float32) for agent in agents] for n in names}


def vectors(shape: tuple[int, int], agents: int = 3, seed: int = 0) -> list[Array]:
    """Task vectors as reinforcement learning leaves them: some 1e-3 large, half of their elements zero."""
    rng = np.random.default_rng(seed)
    found = 1e-3 * rng.standard_normal((agents, *shape)) * (rng.random((agents, *shape)) < 0.5)
    return list(found.astype(np.float32))


def stack_of(taus: Sequence[Any], *, name: str = LINEAR, weights: tuple[float, ...] = (), base: float = 0.0) -> Stack:
    arrays = [np.asarray(tau, np.float32) for tau in taus]
    block = Block(TensorSpec(name, "F32", arrays[0].shape), 0, arrays[0].size)
    start = np.full(arrays[0].size, base, np.float32)
    agents = tuple(start + array.reshape(-1) for array in arrays)
    return Stack(block, start, agents, tuple("abcdef"[: len(agents)]), weights)


def merged(stack: Stack, **settings: Any) -> Array:
    return Wudi(**settings).merge(stack, Survey()).reshape(stack.block.tensor.shape)


def loss_of(merged: Array, taus: Sequence[Array]) -> float:
    """loss(M) of M and task vectors [out, in], in float64; a zero task vector counts nothing."""
    held = [np.asarray(tau, np.float64) for tau in taus]
    norms = [float((tau**2).sum()) for tau in held]
    return sum(float((((merged - tau) @ tau.T) ** 2).sum()) / n for tau, n in zip(held, norms, strict=True) if n)


def total_loss(found: dict[str, Array], taus: dict[str, list[Array]]) -> float:
    return sum(loss_of(found[name], taus[name]) for name in taus)


# the official routine


def test_adam_is_within_2e_5_of_the_official_routine(golden: Path, tmp_path: Path) -> None:
    merge(golden_sources(golden).recipe({"name": "wudi"}, output={"dtype": "float32"}), tmp_path / "out")
    found, expected = read_checkpoint(tmp_path / "out"), read_checkpoint(golden / "expected" / REFERENCE)
    assert len(expected) == 14
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-8, err_msg=f"{name}: float32 does better")


def test_how_far_exact_and_adam_differ_on_the_golden_set(golden: Path) -> None:
    """The numbers of the method's docstring."""
    taus = golden_vectors(golden)
    results: dict[str, dict[str, Array]] = {"sum": {n: np.sum(t, axis=0) for n, t in taus.items()}}
    for method in (Wudi(), Wudi(solver="exact")):
        results[method.solver] = {n: method.merged_vector(Held(t), Arrays()) for n, t in taus.items()}
    losses = {solver: total_loss(found, taus) for solver, found in results.items()}
    assert losses["sum"] == pytest.approx(8.34e-4, rel=5e-3)
    assert losses["adam"] == pytest.approx(2.44e-4, rel=5e-3)
    assert losses["exact"] == pytest.approx(2.39e-4, rel=5e-3)
    apart = {n: results["adam"][n] - results["exact"][n] for n in taus}
    assert max(float(np.abs(array).max()) for array in apart.values()) < 2.1e-3
    shares = [np.linalg.norm(apart[n]) / np.linalg.norm(results["adam"][n]) for n in taus]
    assert min(shares) > 0.05
    assert max(shares) < 0.32
    for name in taus:
        assert loss_of(results["exact"][name], taus[name]) <= loss_of(results["adam"][name], taus[name])


# the loss


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["input", "stacked"])
def test_the_gradient_is_that_of_finite_differences(shape: tuple[int, int], form: Form) -> None:
    taus = [1000 * tau.astype(np.float64) for tau in vectors(shape)]
    start, correction = np.sum(taus, axis=0), np.random.default_rng(1).standard_normal(shape)
    found = np.empty(shape)
    Interference.of(taus, form, np).gradient(correction, out=found)
    for at in np.ndindex(2, 2):
        step = np.zeros(shape)
        step[at] = 1e-3  # the loss is quadratic: central differences are exact up to rounding
        up, down = (loss_of(start + correction + sign * step, taus) for sign in (1, -1))
        assert found[at] == pytest.approx((up - down) / 2e-3, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_adam_lowers_the_loss_and_exact_lowers_it_more(shape: tuple[int, int]) -> None:
    taus = vectors(shape)
    total = np.sum(taus, axis=0)
    adam = loss_of(Wudi().merged_vector(Held(taus), Arrays()), taus)
    exact = loss_of(Wudi(solver="exact", ridge=1e-6).merged_vector(Held(taus), Arrays()), taus)
    assert exact <= adam * (1 + 1e-6)
    assert adam < loss_of(total, taus)


@pytest.mark.parametrize("shape", SHAPES)
def test_at_the_exact_solution_the_gradient_is_the_pull_of_the_ridge(shape: tuple[int, int]) -> None:
    taus, ridge = vectors(shape), 0.1
    correction = solve(Held(taus), ridge=ridge, form="input", arrays=Arrays()) - np.sum(taus, axis=0, dtype=np.float64)
    gradient = np.empty(shape)
    Interference.of([tau.astype(np.float64) for tau in taus], "input", np).gradient(correction, out=gradient)
    pull = ridge * len(taus) / shape[1]
    np.testing.assert_allclose(gradient, -2 * pull * correction, rtol=0, atol=1e-6 * np.abs(gradient).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_input_form_equals_the_stacked_form(shape: tuple[int, int]) -> None:
    taus = vectors(shape)
    left, right = (solve(Held(taus), ridge=0.01, form=form, arrays=Arrays()) for form in ("input", "stacked"))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-8)
    left, right = (descend(taus, steps=300, rate=1e-5, form=form, arrays=Arrays()) for form in ("input", "stacked"))
    np.testing.assert_allclose(left, right, rtol=0, atol=2e-5)


def test_the_cheaper_form_is_chosen() -> None:
    wide, tall = (512, 8192), (8192, 512)
    assert interference.cheaper(interference.descent_flop(*wide, 3, 300)) == "stacked"
    assert interference.cheaper(interference.descent_flop(*tall, 3, 300)) == "input"
    assert interference.cheaper(interference.solution_flop(*wide, 3)) == "stacked"
    assert interference.cheaper(interference.solution_flop(*tall, 3)) == "input"


# by hand


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_where_no_agent_sees_the_others_input_the_sum_is_kept(solver: str) -> None:
    a, b = [[1e-3, 0], [2e-3, 0]], [[0, 3e-3], [0, -1e-3]]
    np.testing.assert_array_equal(merged(stack_of([a, b]), solver=solver), np.float32(a) + np.float32(b))


def test_where_both_agents_see_one_input_exact_is_nearly_their_mean() -> None:
    """A = diag(2, 0), E = ((1, 0), (1, 0)), mu = ridge * 2 / 2: D = -1 / (2 + ridge) in the first column."""
    a, b = [[1, 0], [0, 0]], [[0, 0], [1, 0]]
    kept = 1 - 1 / 2.01
    np.testing.assert_allclose(merged(stack_of([a, b]), solver="exact"), [[kept, 0], [kept, 0]], rtol=1e-6)


def test_the_first_step_of_adam_moves_by_the_learning_rate() -> None:
    a, b = [[1, 0], [0, 0]], [[0, 0], [1, 0]]
    found = merged(stack_of([a, b]), steps=1, learning_rate=0.25)
    np.testing.assert_allclose(found, [[0.75, 0], [0.75, 0]], rtol=1e-6)


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_one_agent_is_kept_as_it_is(solver: str) -> None:
    (tau,) = vectors((5, 6), agents=1)
    np.testing.assert_array_equal(merged(stack_of([tau]), solver=solver), tau)
    assert loss_of(tau, [tau]) == 0


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_a_zero_task_vector_contributes_nothing(solver: str) -> None:
    a, b = vectors((5, 6), agents=2)
    with_zero = merged(stack_of([a, np.zeros((5, 6)), b]), solver=solver)
    assert_same_bits(with_zero, merged(stack_of([a, b]), solver=solver), "merged")


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_zero_task_vectors_leave_the_base_bit_for_bit(solver: str) -> None:
    stack = stack_of([np.zeros((2, 3))] * 2, base=-0.0)
    assert_same_bits(merged(stack, solver=solver).reshape(-1), stack.base, "merged")


@pytest.mark.parametrize("solver", ["adam", "exact"])
@pytest.mark.parametrize("size", [1e-44, 1e-25, 1e15])
def test_tiny_and_huge_task_vectors_give_no_nan(solver: str, size: float) -> None:
    taus = [np.float32(1000 * size) * tau for tau in vectors((5, 6))]
    assert np.isfinite(merged(stack_of(taus), solver=solver)).all()


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_two_agents_that_are_the_same_are_no_trouble(solver: str) -> None:
    (tau,) = vectors((2, 9), agents=1)
    found = merged(stack_of([tau, tau]), solver=solver)
    assert np.isfinite(found).all()
    assert loss_of(found, [tau, tau]) < loss_of(2 * tau, [tau, tau])


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_a_weight_multiplies_the_task_vector(solver: str) -> None:
    a, b = vectors((5, 6), agents=2)
    weighted = merged(stack_of([a, b], weights=(0.5, -2.0)), solver=solver)
    assert_same_bits(weighted, merged(stack_of([a / 2, -2 * b]), solver=solver), "merged")


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_stacked_experts_are_merged_matrix_by_matrix(solver: str) -> None:
    experts = [vectors((5, 6), seed=seed) for seed in range(4)]
    together = merged(stack_of(np.stack(experts, axis=1)), solver=solver)
    for expert, taus in enumerate(experts):
        assert_same_bits(together[expert], merged(stack_of(taus), solver=solver), f"expert {expert}")


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_a_layer_stored_in_by_out_is_turned(solver: str) -> None:
    taus = vectors((5, 6))
    turned = merged(stack_of([tau.T for tau in taus]), solver=solver, transposed=(LINEAR,))
    np.testing.assert_allclose(turned.T, merged(stack_of(taus), solver=solver), rtol=0, atol=1e-7)


# which tensors


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.0.linear_attn.in_proj_qkvz.weight",
        "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.mlp.experts.7.down_proj.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
        "model.layers.0.block_sparse_moe.experts.0.w2.weight",
    ],
)
def test_projections_and_experts_are_linear_layers(name: str) -> None:
    assert Wudi().is_linear(TensorSpec(name, "BF16", (4, 8)))
    assert Wudi().work(TensorSpec(name, "BF16", (4, 8)), 2).reach == "matrix"
    assert Wudi().work(TensorSpec(name, "BF16", (4, 8)), 2).flop > 0
    assert 0 < Wudi().work(TensorSpec(name, "BF16", (4, 8)), 2).share <= 1


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens.weight", (40, 8)),
        ("lm_head.weight", (40, 8)),
        ("model.layers.0.input_layernorm.weight", (8,)),
        ("model.layers.0.self_attn.q_proj.bias", (8,)),
        ("model.layers.0.mlp.gate.weight", (4, 8)),
        ("model.layers.0.block_sparse_moe.gate.weight", (4, 8)),
        ("model.layers.0.mlp.shared_expert_gate.weight", (1, 8)),
        ("model.layers.0.self_attn.q_proj.weight", (1, 8)),
        ("model.layers.0.self_attn.q_proj.weight", (8,)),
        ("visual.patch_embed.proj.weight", (8, 3, 2, 2, 2)),
        ("model.layers.0.mlp.down_proj.weight", (0, 8)),
    ],
)
def test_nothing_else_is(name: str, shape: tuple[int, ...]) -> None:
    assert not Wudi().is_linear(TensorSpec(name, "BF16", shape))
    assert Wudi().work(TensorSpec(name, "BF16", shape), 2) == Work()


def test_the_user_says_which_layers_are_linear() -> None:
    method = Wudi.parse({"name": "wudi", "linear": "*.wqkv.weight,*.w[123].weight"})
    assert method.linear == ("*.wqkv.weight", "*.w[123].weight")
    assert method.is_linear(TensorSpec("layers.0.wqkv.weight", "BF16", (4, 8)))
    assert not method.is_linear(TensorSpec(LINEAR, "BF16", (4, 8)))
    assert Wudi.parse(method.model_dump(mode="json")) == method


@pytest.mark.parametrize(("others", "expected"), [("mean", [1.0, -1.0]), ("sum", [2.0, -2.0]), ("base", [0.0, 0.0])])
def test_the_other_tensors_are_averaged_summed_or_left(others: str, expected: list[float]) -> None:
    stack = stack_of([[3, 0], [-1, -2]], name="model.norm.weight")
    np.testing.assert_array_equal(merged(stack, others=others), expected)


def test_a_part_of_a_linear_layer_is_refused() -> None:
    stack = stack_of(vectors((64, 2048)))
    with pytest.raises(RecipeError, match=f"'wudi' must see {LINEAR} whole"):
        Wudi().merge(next(stack.pieces(2048)), Survey())


# contract


@pytest.mark.parametrize("settings", [{"steps": 20}, {"solver": "exact", "others": "sum"}], ids=["adam", "exact"])
def test_the_contract_is_kept(settings: dict[str, Any]) -> None:
    assert_contract(Wudi(**settings))
    assert_contract(Wudi(**settings), weights=(1.0, 0.5, -0.25))


def test_a_rule_gives_some_layers_another_solver(tiny: Sources, tmp_path: Path) -> None:
    rules = [{"tensors": "*.mlp.*", "solver": "exact"}]
    merge(tiny.recipe({"name": "wudi", "steps": 20}, rules=rules), tmp_path / "both")
    both = read_checkpoint(tmp_path / "both")
    for solver, name in (("exact", LINEAR), ("adam", "model.layers.0.self_attn.q_proj.weight")):
        merge(tiny.recipe({"name": "wudi", "steps": 20, "solver": solver}), tmp_path / solver)
        assert_same_bits(both[name], read_checkpoint(tmp_path / solver)[name], name)


# exact, against a float64 solution of the plain equations


def direct(taus: Sequence[Array], ridge: float) -> Array:
    """M (A + mu I) = B + mu S, by LU, float64."""
    held = [tau.astype(np.float64) for tau in taus]
    grams = [tau.T @ tau / (tau**2).sum() for tau in held]
    pull = ridge * len(held) / held[0].shape[1]
    right = sum(tau @ gram for tau, gram in zip(held, grams, strict=True)) + pull * sum(held)
    return np.linalg.solve(sum(grams) + pull * np.eye(held[0].shape[1]), right.T).T


HOSTILE: dict[str, Callable[[Array, Array], list[Array]]] = {
    "random": lambda a, b: [a, b],
    "three": lambda a, b: [a, b, a + b],
    "identical": lambda a, b: [a, a],
    "opposite": lambda a, b: [a, -a],
    "rank one": lambda a, b: [np.outer(a[:, 0], a[0]).astype("f4"), b],
    "one element": lambda a, b: [a, np.where(np.arange(a.size).reshape(a.shape) == 3, 1e-3, 0).astype("f4")],
    "far apart in size": lambda a, b: [a, (1e4 * b).astype("f4")],
    "sparse": lambda a, b: [np.where(np.abs(a) > 2e-3, a, 0).astype("f4"), b],
}


@pytest.mark.parametrize("ridge", [0.01, 1e-4])
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("shape", [(24, 40), (300, 280), (64, 64)])
def test_exact_is_within_1e_6_of_a_direct_solution(
    shape: tuple[int, int], kind: str, ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of panels that hold all of the matrix, and of such that hold a few rows or columns."""
    taus = HOSTILE[kind](*vectors(shape, 2))
    expected = direct(taus, ridge)
    for form, panel in product(("input", "stacked"), (Arrays.panel, 2 * shape[1])):
        monkeypatch.setattr(Arrays, "panel", panel)
        monkeypatch.setattr(arrays_module, "BLOCK", min(panel, 256))
        found = solve(Held(taus), ridge=ridge, form=form, arrays=Arrays())
        assert np.linalg.norm(found - expected) <= 1e-6 * max(np.linalg.norm(expected), np.linalg.norm(taus[0])), form


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_part_of_a_task_vector_is_that_of_the_whole(turned: bool, wrapped: bool) -> None:
    stack = stack_of([*vectors((6, 10)), np.zeros((6, 10))], weights=(1.0, -0.5, 2.0, 1.0), base=0.5)
    if wrapped:
        stack = replace(stack, tau=3 * stack.task_vectors())
    held = Vectors(stack, Arrays(), turned=turned)
    assert held.changed == (0, 1, 2)
    for i, (tau, weight) in enumerate(zip(stack.task_vectors(), (1.0, -0.5, 2.0), strict=False)):
        whole = np.float32(weight) * tau.reshape(6, 10)
        rows, columns = slice(1, 5), slice(3, 4)
        assert_same_bits(held[i], np.ascontiguousarray(whole.T if turned else whole), "whole")
        expected = (whole.T if turned else whole)[rows, columns]
        assert_same_bits(held.part(i, rows, columns), np.ascontiguousarray(expected), "part")


@pytest.mark.parametrize("output", ["float32", "base"])
def test_wudi_auto_keeps_what_the_agents_learned(golden: Path, tmp_path: Path, output: str) -> None:
    """Mean retention 1 over the whole checkpoint, norms and embeddings included, measured from the files."""
    recipe = golden_sources(golden).recipe({"name": "wudi_auto"}, output={"dtype": output})
    record = merge(recipe, tmp_path / "out")
    base, *agents, found = (read_checkpoint(p) for p in (*(golden / n for n in ("base", *NAMES)), tmp_path / "out"))
    kept = []
    for agent in agents:
        pairs = [
            (found[n].astype("f8") - base[n].astype("f8"), agent[n].astype("f8") - base[n].astype("f8")) for n in base
        ]
        kept.append(sum((m * t).sum() for m, t in pairs) / sum((t * t).sum() for _, t in pairs))
    if output == "float32":
        assert np.mean(kept) == pytest.approx(1, abs=1e-4)
    assert record.learned["retention"]["stored"] == pytest.approx(dict(zip(NAMES, kept, strict=True)), abs=1e-6)
    wrapped = {"name": "calibrate", "then": {"name": "wudi", "solver": "exact"}}
    merge(golden_sources(golden).recipe(wrapped, output={"dtype": output}), tmp_path / "wrapped")
    for name, array in read_checkpoint(tmp_path / "wrapped").items():
        assert_same_bits(array, found[name], name)


@pytest.mark.parametrize("workers", [1, 3])
def test_wudi_auto_gives_the_same_bytes_for_any_worker_count(golden: Path, tmp_path: Path, workers: int) -> None:
    plain = golden_sources(golden).recipe({"name": "wudi_auto"})
    merge(plain, tmp_path / "plain")
    merge({**plain, "run": {"workers": workers, "block_size": 4096}}, tmp_path / "other")
    for name, array in read_checkpoint(tmp_path / "plain").items():
        assert_same_bits(read_checkpoint(tmp_path / "other")[name], array, name)


# cost and memory


def test_a_7b_model_takes_tens_of_pflop_with_adam_and_far_less_with_exact() -> None:
    hidden, inner = 3584, 18944
    shapes = [(hidden, hidden)] * 2 + [(512, hidden)] * 2 + [(inner, hidden)] * 2 + [(hidden, inner)]
    specs = [TensorSpec(LINEAR, "BF16", shape) for shape in shapes]
    adam, exact = (28 * sum(Wudi(solver=s).work(spec, 3).flop for spec in specs) for s in ("adam", "exact"))
    assert 2e16 < adam < 5e16
    assert exact < adam / 20
    assert Wudi().work(specs[-1], 3).bytes < 6e9


def test_work_above_the_limit_is_refused_before_a_byte_is_written(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "speed", lambda device, precision: 1e11)
    recipe = tiny.recipe({"name": "wudi", "steps": 10**9})
    with pytest.raises(RecipeError) as error:
        merge(recipe, tmp_path / "out")
    for part in ("'wudi' takes 2.", "PFLOP", "7.8 hours here", "more than 10 minutes", "CUDA", "--allow-slow"):
        assert part in str(error.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.agentmerge").exists()


def test_slow_work_starts_when_it_is_allowed_or_a_gpu_is_fast_enough(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "MOMENT", 0.0)
    monkeypatch.setattr(estimate, "SLOW", {"cpu": 0.0, "cuda": 0.0})
    monkeypatch.setattr(estimate, "speed", lambda device, precision: 1e15 if device == "cuda" else 1.0)
    method = {"name": "wudi", "steps": 2}
    with pytest.raises(RecipeError, match="allow_slow"):
        merge(tiny.recipe(method), tmp_path / "refused")
    merge(tiny.recipe(method, run={"allow_slow": True}), tmp_path / "allowed")

    class Gpu(Arrays):
        device = "cuda"

    monkeypatch.setattr(layers, "cuda", Gpu)
    merge(tiny.recipe(method), tmp_path / "gpu")


def test_a_gpu_that_is_asked_for_and_missing_is_told(tiny: Sources, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"method\.device: cuda"):
        merge(tiny.recipe({"name": "wudi", "device": "cuda"}), tmp_path / "out")
    assert not (tmp_path / ".out.agentmerge").exists()
    recipe = Recipe.parse(tiny.recipe({"name": "wudi", "device": "cuda"}))
    with planned(recipe) as plan, pytest.raises(RecipeError, match=r"method\.device: cuda"):
        plan_summary(plan, tmp_path / "out")
    probe(recipe)  # needs no matrix


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("ram", None),
        ({"name": "wudi", "steps": 1}, "MFLOP on CPU, a moment"),
        ({"name": "wudi", "steps": 10**9}, "PFLOP on CPU, about 7.8 hours; wants a GPU, or --allow-slow"),
    ],
)
def test_a_dry_run_shows_the_cost_where_there_is_one(
    tiny: Sources, tmp_path: Path, method: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "speed", lambda device, precision: 1e11)
    with planned(Recipe.parse(tiny.recipe(method))) as plan:
        shown = [text for text in plan_summary(plan, tmp_path / "out").splitlines() if text.startswith("cost")]
    assert len(shown) == (line is not None)
    assert all(text.endswith(line) for text in shown)


def test_the_memory_estimate_counts_whole_tensors_and_the_solver(tmp_path: Path) -> None:
    sources = make_agents(tmp_path / "in", base={LINEAR: np.ones((3000, 200), np.float32)})
    beside = {}
    for method in ("ram", "wudi"):
        with planned(Recipe.parse(sources.recipe(method, run={"workers": 2, "block_size": 4096}))) as plan:
            beside[method] = estimate.memory_bytes(plan) - estimate.resident(plan)
            solver = plan.merged[0].work.bytes
            assert bool(solver) == (method == "wudi")
    assert beside["ram"] == 2 * LEAF * 4 * 5  # 2 workers: base, 3 agents, the stored result
    one = 600_000 * 4 * 6 + solver  # whole, and the result before the cast
    assert beside["wudi"] == one * min(available_cpus(), 2)
    assert solver == 4 * (600_000 * (3 + 7) + 2 * 200**2)


def test_the_speed_of_this_machine_is_measured() -> None:
    assert 1e8 < speed("cpu", "float64") < 1e15


# torch


@pytest.mark.slow
def test_torch_gives_what_numpy_gives(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(layers, "cuda", lambda: TorchArrays("cpu"))
    expected = read_checkpoint(golden / "expected" / REFERENCE)
    for solver in ("adam", "exact"):
        results = []
        for device in ("cpu", "auto"):
            method = {"name": "wudi", "solver": solver, "device": device}
            out = tmp_path / solver / device
            merge(golden_sources(golden).recipe(method, output={"dtype": "float32"}), out)
            results.append(read_checkpoint(out))
        for name in expected:
            np.testing.assert_allclose(results[0][name], results[1][name], rtol=0, atol=2e-8, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(24, 40), (300, 64), (1030, 1026)])
def test_torch_solves_experts_together(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some changed by two agents, some by three, by one or none; the largest by halves of their products."""
    pytest.importorskip("torch")
    count = 2 if shape[0] > 1000 else 7
    taus = np.stack([np.stack(vectors(shape, 3, seed)) for seed in range(count)], axis=1)
    taus[0, 1::3] = taus[1, 2::3] = taus[2, 2:6] = 0
    stack = stack_of(taus, name="model.layers.0.mlp.experts.up_proj.weight")
    expected = merged(stack, solver="exact", device="cpu")
    monkeypatch.setattr(layers, "cuda", lambda: TorchArrays("cpu"))
    assert layers.available("auto").batches
    np.testing.assert_allclose(merged(stack, solver="exact"), expected, rtol=0, atol=1e-6 * np.abs(taus).max())


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["input", "stacked"])
def test_torch_computes_either_form(shape: tuple[int, int], form: Form) -> None:
    pytest.importorskip("torch")
    taus, there = [tau.T for tau in vectors(shape[::-1])], TorchArrays("cpu")
    solvers: list[Callable[[Arrays], Array]] = [
        lambda arrays: descend(taus, steps=30, rate=1e-5, form=form, arrays=arrays),
        lambda arrays: solve(Held(taus), ridge=0.01, form=form, arrays=arrays),
    ]
    for solver in solvers:
        with there.computing():
            found = solver(there)
        np.testing.assert_allclose(found, solver(Arrays()), rtol=0, atol=1e-7)
