"""Stacks of hostile numbers, what a method asks about them, and whether two arrays hold the same bits."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.methods.base import before_merging
from agentmerge.survey.statistic import Survey
from agentmerge.synth.numbers import densities_by_name
from agentmerge.tensors import DTYPES, LEAF, Array, Block, Stack, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agentmerge.methods.base import MergeMethod

MOST_ROUNDS = 16
"""How often a method may ask before a test gives up on it."""

SIZES = (0, 1, 63, LEAF - 1, LEAF + 1, 5 * LEAF + 63)
"""Elements of hostile stacks: nothing, less than a vector, and about one and several leaves."""

HOSTILE = (0.0, -0.0, 1e-45, -1e-40, 6e-8, 1e-5, -1.0000001e-5, 1.1754944e-38, 0.02, -1.0, 448.0, 65504.0)
HUGE = (3.3e38, -3.3e38)


def random_stack(
    seed: int,
    *,
    elements: int = 4097,
    agents: int = 3,
    dtypes: Sequence[str] = ("BF16",),
    weights: Sequence[float] = (),
    huge: bool = False,
    non_finite: bool = False,
    importance: bool = False,
    name: str = "model.layers.0.mlp.up_proj.weight",
    start: int = 0,
) -> Stack:
    """A stack of random numbers with hostile ones strewn in; every array is read-only.

    Hostile: -0.0, subnormals, the threshold and its neighbours, large numbers; agents that equal the base in half of
    the elements.

    Args:
        seed: of the numbers.
        elements: of the block.
        agents: how many.
        dtypes: of the base and of the agents, in turn.
        weights: of the agents; none means 1.
        huge: also numbers whose differences overflow float32.
        non_finite: also NaN and inf, here and there.
        importance: beside the weights, some of it 0, as a method that `reads` it is given.
        name: of the tensor.
        start: flat index of the stack's first element in its tensor, a multiple of LEAF.
    """
    rng = np.random.default_rng(seed)
    pool = [*HOSTILE, *(HUGE if huge else ()), *((np.nan, np.inf, -np.inf) if non_finite else ())]

    def numbers() -> Array:
        plain = 0.02 * rng.standard_normal(elements)
        return np.where(rng.random(elements) < 0.2, rng.choice(pool, elements), plain).astype(np.float32)

    def stored(values: Array, t: int) -> Array:
        with np.errstate(over="ignore"):
            array = values.astype(DTYPES[dtypes[t % len(dtypes)]])
        array.flags.writeable = False
        return array

    base = numbers()
    kept = [np.where(rng.random(elements) < 0.5, base, numbers()) for _ in range(agents)]
    spec = TensorSpec(name, dtypes[0], (start + elements,))
    found = tuple(random_importance(rng, (elements,)) for _ in range(agents)) if importance else ()
    return Stack(
        Block(spec, start, start + elements),
        stored(base, 0),
        tuple(stored(values, t + 1) for t, values in enumerate(kept)),
        tuple(sorted(densities_by_name(agents))) if agents else (),
        tuple(weights),
        {"importance": found} if importance else {},
    )


def hostile_stacks(agents: Sequence[int] = (1, 3, 9, 64)) -> Iterator[Stack]:
    """Stacks on which a fast path and its definition part: odd sizes, mixed dtypes, NaN, inf, subnormals, -0.0.

    Args:
        agents: numbers of agents; with more than 9, one small stack each.
    """
    mixes = (("BF16",), ("F32", "BF16"), ("BF16", "F16", "F32"), ("F16",))
    sizes = [(count, size) for count, size in product(agents, SIZES) if count <= 9]
    sizes += [(count, 257) for count in agents if count > 9]
    for seed, (count, elements) in enumerate(sizes):
        yield random_stack(
            seed,
            elements=elements,
            agents=count,
            dtypes=mixes[seed % len(mixes)],
            weights=() if seed % 2 else tuple(np.linspace(0.5, 1.5, count).tolist()),
            huge=seed % 3 == 0,
            non_finite=seed % 3 == 1,
            importance=True,
            start=LEAF * (0, 1, 3, 2**20 + 1)[seed % 4],
        )


def random_importance(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A made-up diagonal Fisher: positive float32 numbers, a tenth of them 0; read-only."""
    values = np.where(rng.random(shape) < 0.1, 0, rng.random(shape) ** 4).astype(np.float32)
    values.flags.writeable = False
    return values


def random_gram(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Made-up Gram matrices [..., n, n] of more inputs than n, float64; read-only."""
    inputs = rng.standard_normal((*shape[:-2], 2 * shape[-1], shape[-1]))
    values = np.swapaxes(inputs, -1, -2) @ inputs
    values = (values + np.swapaxes(values, -1, -2)) / 2
    values.flags.writeable = False
    return np.asarray(values)


def survey_of(method: MergeMethod, stacks: Iterable[Stack]) -> Survey:
    """Everything that a method asks for, folded over the stacks by the statistics' own definitions.

    Raises:
        AssertionError: the method does not stop asking.
    """
    survey, held = Survey(), tuple(stacks)
    for _ in range(MOST_ROUNDS):
        asked = before_merging(method.ask(survey))
        if not asked:
            return survey
        found = Survey()
        for stack in held:
            for statistic in asked:
                with np.errstate(all="ignore"):
                    found.add(statistic, stack.block.tensor.name, statistic.observe(stack))
        survey.update(found)
    raise AssertionError(f"{method!r} still asks for {before_merging(method.ask(survey))} after {MOST_ROUNDS} folds")


def assert_same_bits(found: Array, expected: Array, what: str) -> None:
    """Raise AssertionError unless two arrays have one dtype and shape, and the same bits (any NaN equals any NaN)."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        raise AssertionError(f"{what}: {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}")
    left, right = (np.ascontiguousarray(array).reshape(-1) for array in (found, expected))
    differ = left.view(f"u{left.dtype.itemsize}") != right.view(f"u{right.dtype.itemsize}")
    if left.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            differ &= ~(np.isnan(left) & np.isnan(right))
    if differ.any():
        i = int(np.argmax(differ))
        raise AssertionError(f"{what}: {int(differ.sum())} elements differ, the first at {i}: {left[i]}, {right[i]}")
