"""ResMerge from tables and leading pairs is what its formula gives, and tells where chance decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.methods.arrays import Arrays
from agentmerge.methods.layers import Vectors
from agentmerge.methods.resmerge import ResMerge, agreement, noise
from agentmerge.survey.reported import Facts, collecting
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import make_agents, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentmerge.tensors import Array

NAME = "model.layers.0.mlp.up_proj.weight"


def vectors(shape: tuple[int, int], agents: int = 3, common: float = 0.3, seed: int = 0) -> list[Array]:
    """Sparse task vectors of different sizes, some of it common to all."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal(shape)
    found = [
        1e-3 * (t + 1) * (rng.standard_normal(shape) + common * shared) * (rng.random(shape) < 0.2 + 0.2 * t)
        for t in range(agents)
    ]
    return [tau.astype(np.float32) for tau in found]


def stack_of(taus: Sequence[Array], name: str = NAME, weights: tuple[float, ...] = ()) -> Stack:
    shape = taus[0].shape
    block = Block(TensorSpec(name, "F32", shape), 0, taus[0].size)
    base = np.zeros(taus[0].size, np.float32)
    return Stack(block, base, tuple(t.reshape(-1) for t in taus), tuple("abcdef"[: len(taus)]), weights)


def update(taus: Sequence[Array], name: str = NAME, weights: tuple[float, ...] = (), **settings: Any) -> Array:
    stack = stack_of(taus, name, weights)
    found = ResMerge(**settings).update(Vectors(stack, Arrays(), turned=False), Arrays())
    return np.zeros(taus[0].shape) if found is None else np.asarray(found)


def facts(taus: Sequence[Array], **settings: Any) -> Facts:
    with collecting() as found:
        update(taus, **settings)
    return found


def cosine(one: Array, other: Array) -> float:
    return float((one * other).sum() / (np.linalg.norm(one) * np.linalg.norm(other)))


def by_the_book(taus: Sequence[Array], k: int, b_min: float, b_max: float, rho: float) -> Array:
    """The formula of the file's head over whole matrices, from decompositions."""
    heads = []
    for tau in taus:
        left, values, right = np.linalg.svd(tau.astype(np.float64), full_matrices=False)
        heads.append((left[:, :k] * values[:k]) @ right[:k])
    tails = [tau.astype(np.float64) - head for tau, head in zip(taus, heads, strict=True)]
    r = np.array([np.linalg.norm(tail) for tail in tails])
    pairs = [(i, j) for i in range(len(taus)) for j in range(i)]
    s = float(np.mean([cosine(tails[i], tails[j]) for i, j in pairs]))
    consensus = sum(tail / length for tail, length in zip(tails, r, strict=True))
    c = float(np.mean([cosine(tail, consensus) for tail in tails]))
    if c <= 1 / np.sqrt(len(taus)):
        best = sum(tails) / len(taus)
    else:
        beta = b_max - (b_max - b_min) * ((s + 1) / 2 + (c + 1) / 2) / 2
        best = c**beta * r.mean() * consensus / np.linalg.norm(consensus)
    g = float(np.mean([max(0.0, cosine(heads[i], heads[j])) for i, j in pairs]))
    head = sum(heads) / len(taus)
    return np.asarray(best + rho * g * np.linalg.norm(best) * head / np.linalg.norm(head))


def apart(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("common", [0.3, -0.1], ids=["consensus", "fall-back"])
@pytest.mark.parametrize("shape", [(60, 40), (30, 70), (260, 150)])
@pytest.mark.parametrize("settings", [(1, 0.7, 1.0, 0.2), (3, 0.2, 0.6, 5.0)], ids=str)
def test_it_is_what_the_formula_gives(
    shape: tuple[int, int], settings: tuple[int, float, float, float], common: float
) -> None:
    taus = vectors(shape, common=max(common, 0))
    if common < 0:  # agents that contradict each other
        taus = [taus[0], -taus[0] + 0.5 * taus[1], taus[2]]
    k, b_min, b_max, rho = settings
    found = update(taus, rank_topk=k, beta_min=b_min, beta_max=b_max, head_ratio_budget=rho)
    assert ("consensus" in facts(taus, rank_topk=k)) == (common > 0)
    assert apart(found, by_the_book(taus, *settings)) < 1e-5  # 1e-8 is added to norms of 0.1 here


def test_outside_of_attention_and_mlp_agents_are_shrunk_by_beta_max() -> None:
    taus = vectors((40, 30))
    for name in ("model.score.weight", "model.layers.0.router.weight"):
        assert apart(update(taus, name), by_the_book(taus, 1, 1.0, 1.0, 0.2)) < 1e-5
    assert apart(update(taus), update(taus, "model.score.weight")) > 1e-3


def test_rank_0_is_a_weighting_and_stays_sparse() -> None:
    taus = vectors((40, 30))
    found = update(taus, rank_topk=0)
    r = [np.linalg.norm(tau) for tau in taus]
    expected = sum(tau / length for tau, length in zip(taus, r, strict=True))
    assert cosine(found, expected) == pytest.approx(1, abs=1e-7)
    assert (found[sum(tau != 0 for tau in taus) == 0] == 0).all()
    assert ResMerge(rank_topk=0).matrix_flop(4000, 4000, 3) < ResMerge().matrix_flop(4000, 4000, 3) / 50


def test_one_agent_is_its_tail_and_a_share_of_its_head() -> None:
    (tau,) = vectors((40, 30), agents=1)
    left, values, right = np.linalg.svd(tau.astype(np.float64))
    head = values[0] * np.outer(left[:, 0], right[0])
    tail = tau - head
    assert apart(update([tau]), tail + 0.2 * np.linalg.norm(tail) * head / np.linalg.norm(head)) < 1e-6


def test_agents_that_are_the_same_agree_fully() -> None:
    (tau,) = vectors((40, 30), agents=1)
    found = update([tau, tau, tau], head_ratio_budget=0.0)
    left, values, right = np.linalg.svd(tau.astype(np.float64))
    assert apart(found, tau - values[0] * np.outer(left[:, 0], right[0])) < 1e-5


HOSTILE: dict[str, Callable[[Array, Array], list[Array]]] = {
    "one unchanged": lambda a, b: [a, np.zeros_like(a), b],
    "two unchanged": lambda a, b: [a, np.zeros_like(a), np.zeros_like(a)],
    "rank one": lambda a, b: [np.outer(a[:, 0], a[0]).astype("f4"), b, a],
    "one row": lambda a, b: [np.where(np.arange(len(a))[:, None] == 3, a, 0).astype("f4"), b, a],
    "all of rank one": lambda a, b: [np.outer(a[:, i], a[i]).astype("f4") for i in range(3)],
    "one element": lambda a, b: [a, b, np.where(np.arange(a.size).reshape(a.shape) == 3, 1e-3, 0).astype("f4")],
    "opposite": lambda a, b: [a, -a],
    "far apart in size": lambda a, b: [a, (1e6 * b).astype("f4")],
    "tiny": lambda a, b: [(1e-38 * a).astype("f4"), (1e-38 * b).astype("f4")],
    "huge": lambda a, b: [(1e18 * a).astype("f4"), (1e18 * b).astype("f4")],
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_hostile_matrices_give_finite_numbers_of_the_agents_size(kind: str, k: int) -> None:
    taus = HOSTILE[kind](*vectors((40, 30), agents=2))
    found = update(taus, rank_topk=k)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found) <= 1.0001 * sum(float(np.linalg.norm(tau.astype("f8"))) for tau in taus)


def test_opposite_agents_leave_the_base() -> None:
    a, _ = vectors((40, 30), agents=2)
    assert np.abs(update([a, -a])).max() < 1e-18


def test_a_tail_of_rounding_counts_as_none() -> None:
    """An agent of one changed row is all head: its tail is 0, and nothing of it comes through but the budget."""
    a, b = vectors((40, 30), agents=2)
    row = np.where(np.arange(40)[:, None] == 3, a, 0).astype("f4")
    without = update([np.zeros_like(a), a, b], head_ratio_budget=0.0)
    assert apart(update([row, a, b], head_ratio_budget=0.0), without) < 1e-6


def test_a_weight_multiplies_the_task_vector() -> None:
    a, b, c = vectors((40, 30))
    np.testing.assert_array_equal(update([a, b, c], weights=(2.0, 1.0, 0.5)), update([2 * a, b, c / 2]))


def test_the_agreement_of_heads() -> None:
    assert agreement(np.zeros((3, 3))) == 0
    assert agreement(np.diag([0.0, 4.0, 0.0])) == 1
    assert agreement(np.array([[4.0, 1.0], [1.0, 1.0]])) == pytest.approx(0.5)
    assert agreement(np.array([[1.0, -1.0], [-1.0, 1.0]])) == 0


def test_within_three_deviations_of_unrelated_agents_it_is_chance() -> None:
    rng, elements = np.random.default_rng(0), 40 * 30
    found = []
    for _ in range(200):
        units = [tau / np.linalg.norm(tau) for tau in rng.standard_normal((3, elements))]
        found.append(np.mean([units[i] @ units[j] for i in range(3) for j in range(i)]))
    assert np.std(found) == pytest.approx(noise((40, 30), 3) / 3, rel=0.15)
    assert noise((40, 30), 1) == 0


def test_the_record_tells_the_branches_and_where_chance_took_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    names = {
        "model.layers.0.mlp.up_proj.weight": rng.standard_normal((64, 48)),
        "model.layers.0.mlp.down_proj.weight": np.zeros((48, 64)),
        "model.norm.weight": np.zeros(48),
    }
    base = {name: np.zeros(common.shape, np.float32) for name, common in names.items()}
    sources = make_agents(tmp_path / "in", base=base)
    for path in sources.agents.values():
        own = {n: (common + rng.standard_normal(common.shape)).astype("f4") for n, common in names.items()}
        write_checkpoint(path, own)
    record = merge(sources.recipe({"name": "resmerge"}), tmp_path / "out")
    learned = record.learned["resmerge"]
    assert list(learned["consensus"]["first"])[-1] == "model.layers.0.mlp.up_proj.weight"
    assert learned["consensus"]["first"]["model.layers.0.mlp.up_proj.weight"] == pytest.approx(0.5, abs=0.05)
    assert list(learned["by_chance"]["first"]) == ["model.layers.0.mlp.down_proj.weight"]
    (warning,) = [text for text in record.warnings if "resmerge" in text]
    assert "in 1 matrix the agents agree as little as unrelated ones (model.layers.0.mlp.down_proj.weight)" in warning
