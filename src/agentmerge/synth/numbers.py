"""What a synthetic set is made of: the agents' names and densities, and every number as its bf16 bit pattern.

A run of up to RUN elements of one tensor has a random stream of its own, keyed by (seed, purpose, agent, tensor, run).
So neither the workers nor the shard size can change a number. Each element takes 16 bits u[i] and looks its number up
in a table of 65,536 entries.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import RecipeError, Where
from agentmerge.randomness import stream_key
from agentmerge.tensors import DTYPES, Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Block

NAMES = ("code", "tool", "memory")
"""The first agents; the next are agent4, agent5 ..."""

DENSITIES = (0.032, 0.462, 0.543)
"""Default densities, those of the paper's agents; from the fourth agent on they begin again."""

RUN = 1 << 20
"""Elements of a run."""

DEVIATION = 0.02
"""Standard deviation of every base tensor."""

STEP_SHARES = (0.65, 0.20, 0.15)
"""Shares of the changes that are 1, 2 and 3 steps long."""

_DRAWS = 1 << 16


def densities_by_name(agents: int, densities: Sequence[float] | None = None) -> dict[str, float]:
    """The agents' names and what each shall change, in their order.

    Raises:
        RecipeError: no agent, not one density for each, or a density out of [0, 1].
    """
    check_at_least_one("agents", agents)
    names = [*NAMES, *(f"agent{i + 1}" for i in range(len(NAMES), agents))][:agents]
    values = [DENSITIES[i % len(DENSITIES)] for i in range(agents)] if densities is None else list(densities)
    if len(values) != agents:
        given = f"densities: {len(values)} given for {agents} agents"
        raise RecipeError(given, todo="Give one for each agent.", where=Where(path="densities"))
    for name, value in zip(names, values, strict=True):
        if not 0 <= value <= 1:
            given = f"densities: {value} for agent '{name}'"
            raise RecipeError(given, expected="a share from 0 to 1", where=Where(path="densities"))
    return dict(zip(names, values, strict=True))


def check_at_least_one(name: str, value: int) -> None:
    """Complain of a setting that counts something and is less than 1.

    Raises:
        RecipeError: it is.
    """
    if value < 1:
        raise RecipeError(f"{name}: {value}", expected="at least 1", where=Where(path=name))


def base_numbers(block: Block, seed: int) -> Array:
    """base[i] = bf16(mean + 0.02 * quantile((u[i] + 0.5) / 65536)); the mean is 1 for norm weights, else 0.

    Args:
        block: at most RUN elements, from a multiple of RUN on.
        seed: of the whole set.

    Returns:
        uint16 [n], bf16 bit patterns.
    """
    mean = 1.0 if block.tensor.name.endswith("norm.weight") else 0.0
    return _look_up(normal_table(mean), _draws(block, seed, "synth-base", ""))


def agent_numbers(base: Array, block: Block, seed: int, agent: str, density: float) -> tuple[Array, int]:
    """agent[i] = base[i] moved by step(u[i]) on the bf16 grid, step = 0 but with probability `density`.

    Args:
        base: uint16 [n], the same block of the base, from `base_numbers`.
        block: the address of it.
        seed: of the whole set.
        agent: its name.
        density: share of the elements that change, [0, 1].

    Returns:
        uint16 [n] bf16 bit patterns, and how many of them differ from the base's.
    """
    steps = _look_up(step_table(density), _draws(block, seed, "synth-agent", agent))
    changed = int(np.count_nonzero(steps))
    steps += base
    return steps, changed


@cache
def normal_table(mean: float) -> Array:
    """The 65,536 equally likely numbers of the base: uint16 [65536], bf16 bit patterns, ascending.

    All are normal numbers far from zero and infinity, so adding up to 3 to a bit pattern moves the magnitude
    by as many steps of the bf16 grid and cannot leave it.
    """
    normal = NormalDist(mean, DEVIATION)
    quantiles = [normal.inv_cdf((draw + 0.5) / _DRAWS) for draw in range(_DRAWS)]
    return np.array(quantiles, dtype=np.float32).astype(DTYPES["BF16"]).view(np.uint16)


@cache
def step_table(density: float) -> Array:
    """The step of each draw: uint16 [65536], values -3 to 3 modulo 65536.

    `density` of the draws, at least one where it is above 0, get a step; its length follows STEP_SHARES, its
    sign alternates.
    """
    changed = max(round(density * _DRAWS), int(density > 0))
    position = np.arange(changed)
    length = 1 + np.searchsorted(np.cumsum(STEP_SHARES[:-1]), (position + 0.5) / max(changed, 1))
    table = np.zeros(_DRAWS, dtype=np.int16)
    table[:changed] = np.where(position % 2 == 0, length, -length)
    return table.view(np.uint16)


def _draws(block: Block, seed: int, purpose: str, agent: str) -> Array:
    """16 uniform bits for each element of the block: uint16 [n]."""
    key = stream_key(seed, purpose, agent, block.tensor.name)
    words = np.random.SFC64([*key, block.start // RUN]).random_raw(-(-block.elements // 4))
    return words.astype("<u8", copy=False).view(np.uint16)[: block.elements]


def _look_up(table: Array, draws: Array) -> Array:
    """table[draws]; no draw is out of range, and mode "clip" spares numpy looking for one."""
    return table.take(draws, mode="clip")
