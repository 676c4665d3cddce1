"""DARE drops the addressed elements, keeps the mean, and lets the inner method see nothing but what is left."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import Recipe, merge, probe
from agentmerge.errors import RecipeError
from agentmerge.methods.dare import Dare, drop
from agentmerge.methods.ram import Ram
from agentmerge.methods.ram_energies import Energies, scales_from
from agentmerge.methods.registry import resolve_method
from agentmerge.methods.ties import Ties
from agentmerge.randomness import random_bits, stream_key
from agentmerge.survey.overlap import Overlap
from agentmerge.tensors import LEAF, Block, Stack, TensorSpec, as_float32
from agentmerge.testing import (
    Sources,
    assert_contract,
    assert_same_bits,
    assert_same_tensors,
    make_agents,
    random_base,
    random_stack,
    read_checkpoint,
    survey_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

INNER: tuple[dict[str, Any], ...] = (
    {"name": "task_arithmetic", "scale": 0.7},
    {"name": "ties"},
    {"name": "ram"},
    {"name": "ram_plus"},
    {"name": "ram_plus", "rescale": "auto", "shared": "elect"},
    {"name": "calibrate", "then": "ram"},
)


def dropped_by_hand(stack: Stack, density: float, seed: int) -> Array:
    """The head of dare.py for a whole tensor."""
    result = []
    for name, tau in zip(stack.names, stack.task_vectors(), strict=True):
        bits = random_bits(stream_key(seed, "dare", name, stack.block.tensor.name), 0, tau.size)
        result.append(np.where(bits.astype(np.float64) / 2**32 < density, tau / np.float32(density), np.float32(0)))
    return np.array(result)


def stacks_of(sources: Sources) -> list[Stack]:
    """Every tensor whole."""
    names = tuple(sorted(sources.agents))
    base, agents = read_checkpoint(sources.base), [read_checkpoint(sources.agents[name]) for name in names]
    found = []
    for tensor, array in base.items():
        block = Block(TensorSpec(tensor, "BF16", array.shape), 0, array.size)
        found.append(Stack(block, array.reshape(-1), tuple(agent[tensor].reshape(-1) for agent in agents), names))
    return found


# the draws


@pytest.mark.usefixtures("either_way")
def test_kept_elements_are_divided_by_the_density_and_the_others_are_zero() -> None:
    stack = random_stack(3, elements=4097)
    assert_same_bits(drop(stack, 0.3, 7).task_vectors(), dropped_by_hand(stack, 0.3, 7), "tau'")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
def test_the_kept_fraction_is_near_the_density(stack_of: Any, density: float) -> None:
    n = 100_000
    kept = drop(stack_of(np.zeros(n), np.ones((2, n))), density, 0).task_vectors() != 0
    assert (np.abs(kept.mean(axis=1) - density) < 5 * np.sqrt(density * (1 - density) / n)).all()


@pytest.mark.usefixtures("either_way")
def test_agents_tensors_and_seeds_are_drawn_apart(stack_of: Any) -> None:
    n, masks = 20_000, []
    for tensor, seed in (("v", 0), ("w", 0), ("w", 1)):
        masks += list(drop(stack_of(np.zeros(n), np.ones((2, n)), tensor), 0.5, seed).task_vectors() != 0)
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs((one & other).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n)


@given(seed=st.integers(0, 2**64 - 1), cuts=st.lists(st.integers(1, 3), max_size=3), density=st.floats(0.01, 0.99))
@settings(max_examples=25, deadline=None)
def test_a_part_is_dropped_as_the_whole_is(seed: int, cuts: list[int], density: float) -> None:
    stack = random_stack(1, elements=4 * LEAF + 5)
    whole = drop(stack, density, seed).task_vectors()
    edges = [0, *(LEAF * c for c in sorted(set(cuts))), 4 * LEAF + 5]
    for low, high in pairwise(edges):
        part = replace(
            stack,
            block=Block(stack.block.tensor, low, high),
            base=stack.base[low:high],
            agents=tuple(agent[low:high] for agent in stack.agents),
        )
        assert_same_bits(drop(part, density, seed).task_vectors(), whole[:, low:high], f"[{low}, {high})")


def test_the_mean_over_many_seeds_is_the_inner_method(stack_of: Any, merged: Any) -> None:
    """The z-scores of single elements have mean 0 and variance 1, within five standard errors."""
    rng, n, seeds, density = np.random.default_rng(0), 1000, 400, 0.4
    stack = stack_of(np.zeros(n), rng.standard_normal((3, n)))
    inner = resolve_method({"name": "task_arithmetic", "scale": 0.5})
    found = np.mean(
        [Dare(density=density, seed=s, then=inner).merge(stack, survey_of(inner, [])) for s in range(seeds)], 0
    )
    deviation = 0.5 * np.sqrt((stack.task_vectors() ** 2).sum(axis=0) * (1 / density - 1) / seeds)
    z = (found - merged(inner, stack)) / deviation
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / n)


# the inner method


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_density_1_is_the_inner_method_bit_for_bit(tiny: Sources, tmp_path: Path, inner: dict[str, Any]) -> None:
    plain = merge(tiny.recipe(inner), tmp_path / "plain")
    wrapped = merge(tiny.recipe({"name": "dare", "density": 1, "then": inner}), tmp_path / "wrapped")
    assert_same_tensors(read_checkpoint(tmp_path / "wrapped"), read_checkpoint(tmp_path / "plain"))
    assert wrapped.survey == plain.survey
    assert wrapped.rounding == plain.rounding
    if inner["name"] != "calibrate":  # a wrapper passes nothing on that is asked of the stored result
        assert wrapped.learned == plain.learned


def test_the_inner_ratio_is_that_of_the_dropped_task_vectors(tiny: Sources, tmp_path: Path) -> None:
    """RAM+ under DARE: rho counted by hand over the dropped task vectors gives the scale of the record."""
    recipe = tiny.recipe({"name": "dare", "density": 0.6, "then": {"name": "ram_plus", "clip": 100}}, seed=11)
    unique, shared = np.zeros((2, 3), np.int64)
    for stack in stacks_of(tiny):
        changed = np.abs(dropped_by_hand(stack, 0.6, 11)) > np.float32(1e-5)
        unique += (changed & (changed.sum(axis=0) == 1)).sum(axis=1)
        shared += (changed & (changed.sum(axis=0) > 1)).sum(axis=1)
    expected = dict(zip(("code", "memory", "tool"), (1 + 0.1 * shared / unique).tolist(), strict=True))
    for record in (probe(recipe), merge(recipe, tmp_path / "out")):
        assert {name: agent.scale for name, agent in record.survey.agents.items()} == expected
    plain = probe(tiny.recipe({"name": "ram_plus", "clip": 100})).survey
    assert all(plain.agents[name].scale != scale for name, scale in expected.items())


def test_the_inner_limits_and_energies_are_those_of_the_dropped_task_vectors(tiny: Sources, tmp_path: Path) -> None:
    stacks = stacks_of(tiny)
    magnitudes = np.concatenate([np.abs(dropped_by_hand(stack, 0.5, 0)) for stack in stacks], axis=1)
    k = int(magnitudes.shape[1] * (1 - 0.2))
    record = merge(tiny.recipe({"name": "dare", "then": "ties"}), tmp_path / "ties")
    for t, name in enumerate(sorted(tiny.agents)):
        limit = float(np.sort(magnitudes[t])[k - 1])
        ties = int((magnitudes[t] == limit).sum()) if limit else 0
        assert record.learned["trim"][name] == {"smallest_kept": limit, "ties": ties}
    auto = merge(tiny.recipe({"name": "dare", "then": {"name": "ram_plus", "rescale": "auto"}}), tmp_path / "auto")
    energies = Energies(1e-5, "mean", 1.0)
    by_hand = [energies.observe(replace(stack, tau=dropped_by_hand(stack, 0.5, 0))) for stack in stacks]
    total = sum(by_hand[1:], by_hand[0])
    assert tuple(agent.scale for agent in auto.survey.agents.values()) == scales_from(total, None)


@pytest.mark.usefixtures("either_way")
def test_the_result_is_the_inner_methods_on_the_dropped_task_vectors(tiny: Sources, tmp_path: Path) -> None:
    method = Dare(density=0.4, seed=5, then=Ram(rescale=0.5))
    merge(tiny.recipe(method, output={"dtype": "float32"}), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    dropped = [replace(stack, tau=dropped_by_hand(stack, 0.4, 5)) for stack in stacks_of(tiny)]
    survey = survey_of(method.then, dropped)
    for stack in dropped:
        expected = method.then.merge(stack, survey)
        assert_same_bits(found[stack.block.tensor.name].reshape(-1), expected, stack.block.tensor.name)


def test_a_unique_kept_element_of_ram_is_base_plus_tau_over_density(stack_of: Any, merged: Any) -> None:
    stack = stack_of(np.ones(64), [np.full(64, 3.0)])
    found = merged(Dare(density=0.5, then=Ram(name="ram")), stack)
    assert set(found.tolist()) == {1.0, 5.0}


def test_ram_under_dare_has_no_scale_per_agent_and_tells_how_many_rescales_survived(
    tiny: Sources, tmp_path: Path
) -> None:
    recipe = tiny.recipe({"name": "dare", "then": "ram"})
    record = merge(recipe, tmp_path / "out")
    for survey in (record.survey, probe(recipe).survey):
        assert {agent.scale for agent in survey.agents.values()} == {None}
    assert all((agent.rescale_survived or 0) > 0.5 for agent in record.rounding.values())


def test_questions_about_dropped_task_vectors_are_told_from_the_others() -> None:
    keys = set()
    for method in (Dare(density=0.5, seed=0), Dare(density=0.5, seed=1), Dare(density=0.4, seed=0)):
        for then in (Ram(), Ram(threshold=1e-4)):
            (question,) = method.model_copy(update={"then": then}).ask(survey_of(Ram(name="ram"), []))
            keys.add(question.key)
    assert len(keys) == 6
    assert Overlap().key not in keys


# the seed


def test_the_recipes_seed_reaches_dare_and_its_own_wins(tiny: Sources, tmp_path: Path) -> None:
    def run(name: str, recipes: int, **settings: Any) -> Mapping[str, Array]:
        merge(tiny.recipe({"name": "dare", **settings}, seed=recipes), tmp_path / name)
        return read_checkpoint(tmp_path / name)

    by_recipe, own = run("recipe", 5), run("own", 9, seed=5)
    assert_same_tensors(own, by_recipe, "seed 5 either way")
    other = run("other", 6)
    assert any((as_float32(other[n]) != as_float32(array)).any() for n, array in by_recipe.items())


def test_the_seed_reaches_dare_inside_another_wrapper(tiny: Sources) -> None:
    nested = {"name": "calibrate", "then": {"name": "dare", "then": {"name": "dare", "seed": 3}}}
    method: Any = Recipe.parse(tiny.recipe(nested, seed=8)).method
    assert (method.then.seed, method.then.then.seed) == (8, 3)


def test_a_record_replays_with_the_seed_that_was_used(tiny: Sources, tmp_path: Path) -> None:
    record = merge(tiny.recipe("dare", seed=4), tmp_path / "out")
    assert record.recipe["method"]["seed"] == 4
    assert Recipe.parse(record.recipe) == Recipe.parse(tiny.recipe("dare", seed=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0}, r"method\.density: Input should be greater than 0"),
        ({"density": 1.5}, r"method\.density: Input should be less than or equal to 1"),
        ({"then": "tise"}, r"no method 'tise'\. Did you mean 'ties'\?"),
        ({"then": {"name": "ties", "densty": 1}}, r"densty: unknown field\. Did you mean 'density'\?"),
    ],
)
def test_wrong_settings_are_refused(tiny: Sources, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(tiny.recipe({"name": "dare", **settings}))


# however it is run


@pytest.mark.parametrize("inner", ["task_arithmetic", "ties", "ram_plus", "ram"])
def test_the_contract_is_kept_around_any_method(inner: str) -> None:
    assert_contract(Dare(density=0.3, seed=1, then=resolve_method(inner)), weights=(0.5, 1.0, 1.7))


def test_masks_do_not_depend_on_blocks_workers_or_shards(tmp_path: Path) -> None:
    """Tensors of several blocks of 4,096 bytes."""
    sources = make_agents(tmp_path / "in", base=random_base(1, {"wide": (3, 40_001), "norm": (77,)}))
    method = {"name": "dare", "density": 0.5, "then": "ram"}
    merge(sources.recipe(method), tmp_path / "plain")
    expected = (tmp_path / "plain" / "model.safetensors").read_bytes()
    for i, (block_size, workers) in enumerate(((4096, 1), (4096, 3), (1_000_000, 2))):
        merge(sources.recipe(method, run={"block_size": block_size, "workers": workers}), tmp_path / str(i))
        assert (tmp_path / str(i) / "model.safetensors").read_bytes() == expected
    merge(sources.recipe(method, output={"shard_size": 1000}), tmp_path / "shards")
    assert_same_tensors(read_checkpoint(tmp_path / "shards"), read_checkpoint(tmp_path / "plain"))


def test_ties_under_dare_trims_what_is_left(stack_of: Any, merged: Any) -> None:
    stack = stack_of(np.zeros(1000), [np.arange(1, 1001)])
    tau = dropped_by_hand(stack, 0.5, 0)[0]
    limit = np.sort(tau)[int(1000 * (1 - 0.2)) - 1]
    found = merged(Dare(density=0.5, seed=0, then=Ties(density=0.2)), stack)
    np.testing.assert_array_equal(found, np.where(tau >= limit, tau, 0))
