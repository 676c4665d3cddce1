"""The numbers of a synthetic set: a normal base, and agents a few bf16 steps away from it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from agentmerge.synth.numbers import RUN, agent_numbers, base_numbers, normal_table, step_table
from agentmerge.tensors import Block, TensorSpec

WEIGHT = Block(TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (1 << 18,)), 0, 1 << 18)
NORM = Block(TensorSpec("model.norm.weight", "BF16", (4097,)), 0, 4097)


def numbers(bits):
    return bits.view(ml_dtypes.bfloat16).astype(np.float64)


def grid_position(bits):
    magnitude = (bits & 0x7FFF).astype(np.int64)
    return np.where(bits >> 15, -magnitude, magnitude)


def slow_step(draw, density):
    """The plain rule behind step_table, for one draw."""
    changed = round(density * 65536)
    if draw >= changed:
        return 0
    share = (draw + 0.5) / changed
    length = 1 if share <= 0.65 else 2 if share <= 0.85 else 3
    return length if draw % 2 == 0 else -length


def test_the_base_is_normal_with_standard_deviation_002():
    values = numbers(base_numbers(WEIGHT, 0))
    assert abs(values.mean()) < 2e-4
    assert values.std() == pytest.approx(0.02, rel=0.01)
    assert np.mean(np.abs(values) < 0.02) == pytest.approx(0.683, abs=0.005)


def test_norm_weights_are_around_one():
    values = numbers(base_numbers(NORM, 0))
    assert values.mean() == pytest.approx(1, abs=0.002)
    assert 0.9 < values.min() < values.max() < 1.1


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_no_three_steps_from_any_base_number_reach_zero_or_infinity(mean):
    magnitude = normal_table(mean) & 0x7FFF
    assert magnitude.min() - 3 >= 0x0080  # the smallest normal bf16
    assert magnitude.max() + 3 < 0x7F80  # infinity


@pytest.mark.parametrize("density", [0.0, 0.032, 0.543, 1.0])
def test_the_table_of_steps_follows_the_plain_rule(density):
    assert step_table(density).view(np.int16).tolist() == [slow_step(draw, density) for draw in range(65536)]


def test_a_density_above_zero_always_changes_something():
    assert np.count_nonzero(step_table(1e-9)) == 1


@pytest.mark.parametrize("density", [0.032, 0.462, 0.543])
def test_an_agent_changes_its_density_by_one_to_three_steps_of_the_grid(density):
    base = base_numbers(WEIGHT, 0)
    agent, changed = agent_numbers(base, WEIGHT, 0, "code", density)
    steps = grid_position(agent) - grid_position(base)
    moved = np.abs(steps[steps != 0])
    assert changed == moved.size == np.count_nonzero(numbers(agent) != numbers(base))
    assert changed / base.size == pytest.approx(density, abs=0.003)
    assert np.bincount(moved)[1:] / changed == pytest.approx([0.65, 0.20, 0.15], abs=0.02)
    assert steps.mean() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("elements", [1, 63, 4097])
def test_a_short_piece_is_the_beginning_of_a_long_one(elements):
    short = Block(WEIGHT.tensor, 0, elements)
    assert np.array_equal(base_numbers(short, 0), base_numbers(WEIGHT, 0)[:elements])


def test_seeds_tensors_pieces_and_agents_have_streams_of_their_own():
    other_tensor = Block(TensorSpec("lm_head.weight", "BF16", WEIGHT.tensor.shape), 0, WEIGHT.stop)
    other_piece = Block(WEIGHT.tensor, RUN, RUN + WEIGHT.stop)
    bases = [
        base_numbers(WEIGHT, 0),
        base_numbers(WEIGHT, 1),
        base_numbers(other_tensor, 0),
        base_numbers(other_piece, 0),
    ]
    agents = [agent_numbers(bases[0], WEIGHT, 0, name, 0.5)[0] for name in ("code", "tool")]
    for first, second in [*((bases[0], base) for base in bases[1:]), tuple(agents)]:
        assert np.mean(first == second) < 0.6


def test_the_numbers_of_seed_0_stay_what_they_are():
    base = base_numbers(NORM, 0)
    assert base[:4].tolist() == [16252, 16264, 16258, 16254]
    assert agent_numbers(base, NORM, 0, "code", 0.5)[0][:4].tolist() == [16252, 16263, 16258, 16255]
