"""The definitions of what a full probe counts, in numpy, one short function per measure."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.kernels.arguments import MAGNITUDE_SHIFT, MAGNITUDES
from agentmerge.randomness import stream_key
from agentmerge.survey.overlap import changed_mask
from agentmerge.tensors import LEAF, MIX, Cast, as_float32

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Stack

OUTPUTS = ("BF16", "F16", "F32")
"""Output dtypes whose rounding is tried."""
MULTIPLIERS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 2.0, 3.0)
"""Of a unique change: what RAM+ makes of rescale 0.05 to 1 at an overlap-unique ratio of 1 or 2."""
SCALED_DOWN = ("task_arithmetic", "ram")
"""Methods whose merge is rounded in `lost`: the sum over N, and RAM."""
STEPS = (1, 2, 3, 5, 9)
"""The first number of steps of each class: 1, 2, 3-4, 5-8, 9 or more."""
EXPONENTS = 256


def pairs(agents: int) -> list[tuple[int, int]]:
    """Every pair of agents, in the order of p."""
    return list(combinations(range(agents), 2))


def count(stack: Stack, threshold: float, sample: int) -> tuple[dict[str, Array], Array]:
    """The counts of question.ProfileCounts by name, and the rows of its energies, float64 [rows, n]."""
    tau, where = stack.task_vectors(), sampled(stack, sample)
    everywhere = changed_mask(tau, threshold)
    mean, number, changed = mean_change(tau, everywhere), everywhere.sum(axis=0), everywhere & where
    regions = changed, changed & (number == 1), changed & (number >= 2)
    mixed: Array = np.asarray((changed & (tau > 0)).any(axis=0) & (changed & (tau < 0)).any(axis=0))
    small: Array = np.asarray(np.abs(mean) <= np.float32(threshold))
    counts = {
        **by_exponent(as_float32(stack.base).view(np.uint32), where, changed),
        "sampled": np.array([region.sum(axis=1) for region in regions]),
        "steps": step_classes(stack, changed),
        **agreements(tau, changed),
        "conflict": _per_agent(changed, mixed),
        "cancelled": _per_agent(regions[2], small),
        "magnitudes": magnitudes(tau, changed),
        "lost": lost(stack, tau, everywhere, mean, regions[:2]),
        "survived": survived(stack, tau, regions[1]),
    }
    return {name: array.astype(np.int64) for name, array in counts.items()}, energies(tau, changed, mean)


def sampled(stack: Stack, sample: int) -> Array:
    """Whether an element lies on a sampled leaf, (leaf * MIX + key) mod 2^32 < 2^32 / sample; bool [n].

    Multiples of the golden ratio are spread evenly, whatever the length of a row; the key differs by tensor.
    """
    leaves = (stack.block.start + np.arange(stack.base.size, dtype=np.uint64)) // np.uint64(LEAF)
    place = leaves * np.uint64(MIX) + np.uint64(sample_key(stack.block.tensor.name)) & np.uint64(0xFFFFFFFF)
    chosen: Array = place < np.uint64(2**32 // sample)
    return chosen


def sample_key(tensor: str) -> int:
    """The 32-bit key of a tensor's sample."""
    return stream_key(0, "sample", "", tensor)[0]


def mean_change(tau: Array, changed: Array) -> Array:
    """The mean of the changes at each element, float32 [n]; sums run over the agents in their order."""
    total = np.zeros(tau.shape[1], np.float32)
    for row, by in zip(tau, changed, strict=True):
        total += np.where(by, row, np.float32(0))
    mean: Array = total / np.maximum(changed.sum(axis=0), 1).astype(np.float32)
    return mean


def by_exponent(base: Array, where: Array, changed: Array) -> dict[str, Array]:
    """Sampled elements, the changed ones and those changed by both of a pair, by the exponent bits of |base|."""
    exponent = (base >> 23 & 0xFF).astype(np.int64)

    def histogram(which: Array) -> Array:
        return np.bincount(exponent[which], minlength=EXPONENTS)

    both = [histogram(a & b) for a, b in combinations(changed, 2)]
    return {
        "elements": histogram(where),
        "changed": np.stack([histogram(row) for row in changed]),
        "both": np.array(both, np.int64).reshape(len(both), EXPONENTS),
    }


def step_classes(stack: Stack, changed: Array) -> Array:
    """Of each agent's changed elements those 1, 2, 3-4, 5-8, 9+ numbers of the base's dtype away from it, [t, 5]."""
    base = order(stack.base)
    found = []
    for t, by in enumerate(changed):
        own = stack.agents[t] if stack.tau is None else stack.values(t)
        distance = np.abs(order(own.astype(stack.base.dtype)) - base)[by]
        ends = [np.sum(distance >= first) for first in STEPS]
        found.append([a - b for a, b in zip(ends, [*ends[1:], 0], strict=True)])
    return np.array(found)


def order(array: Array) -> Array:
    """The place of each stored number among those of its dtype, int64 [n]: neighbours differ by 1, both zeros are 0."""
    bits = 8 * array.dtype.itemsize
    raw = array.view(f"u{array.dtype.itemsize}").astype(np.int64)
    size = raw & (1 << bits - 1) - 1
    placed: Array = np.where(raw >> bits - 1 & 1, -size, size)
    return placed


def agreements(tau: Array, changed: Array) -> dict[str, Array]:
    """Of the elements that both of a pair changed: in the same direction, and by the same amount; [p]."""
    agree, equal = [], []
    for s, t in pairs(len(tau)):
        both = changed[s] & changed[t]
        agree.append(np.sum(both & ((tau[s] > 0) == (tau[t] > 0))))
        equal.append(np.sum(both & (tau[s] == tau[t])))
    return {"agree": np.array(agree, np.int64), "equal": np.array(equal, np.int64)}


def magnitudes(tau: Array, chosen: Array) -> Array:
    """The chosen elements by the upper bits of |tau|, [t, MAGNITUDES]."""
    bits = (np.ascontiguousarray(tau).view(np.uint32) & np.uint32(0x7FFFFFFF)) >> MAGNITUDE_SHIFT
    return np.stack(
        [np.bincount(row[by].astype(np.int64), minlength=MAGNITUDES) for row, by in zip(bits, chosen, strict=True)]
    )


def lost(stack: Stack, tau: Array, changed: Array, mean: Array, regions: tuple[Array, ...]) -> Array:
    """Per region what the sum over N, or RAM, moves and each dtype stores as the base; [2, 3, region, t]."""
    base = as_float32(stack.base)
    total = np.zeros_like(base)
    for row in tau:
        total += row
    averaged = base + np.float32(1 / len(tau)) * total
    kept = base + mean
    for t, by in enumerate(changed & (changed.sum(axis=0) == 1)):
        kept = np.where(by, stack.values(t), kept)
    found = [[_lost(merged, base, dtype) for dtype in OUTPUTS] for merged in (averaged, kept)]
    return np.array([[[(region & f).sum(axis=1) for region in regions] for f in row] for row in found])


def survived(stack: Stack, tau: Array, unique: Array) -> Array:
    """Unique elements that each dtype stores as another number once their change is multiplied; [d, m, t]."""
    base = as_float32(stack.base)
    own, values = np.zeros_like(base), base
    for t, by in enumerate(unique):
        own, values = np.where(by, tau[t], own), np.where(by, stack.values(t), values)
    scaled = [base + np.float32(multiplier) * own for multiplier in MULTIPLIERS]
    differs = [[_stored(dtype, x) != _stored(dtype, values) for x in scaled] for dtype in OUTPUTS]
    return np.array([[(unique & which).sum(axis=1) for which in row] for row in differs])


def energies(tau: Array, chosen: Array, mean: Array) -> Array:
    """The rows of question.Energy, float64 [3 t + 3 p, n], over the changes that are chosen."""
    number, wide = chosen.sum(axis=0), np.where(chosen, tau, 0).astype(np.float64)
    unique, shared = np.where(number == 1, wide, 0), np.where(number >= 2, wide, 0)
    both = [(np.where(chosen[t], wide[s], 0), np.where(chosen[s], wide[t], 0)) for s, t in pairs(len(tau))]
    kept = shared * np.where(number >= 1, mean, 0).astype(np.float64)
    rows = [*(unique * unique), *(shared * shared), *kept]
    rows += [a * b for a, b in both] + [a * a for a, _ in both] + [b * b for _, b in both]
    return np.array(rows)


def _per_agent(changed: Array, which: Array) -> Array:
    count: Array = (changed & which).sum(axis=1)
    return count


def _stored(dtype: str, values: Any) -> Array:
    return as_float32(Cast(dtype).apply(values, "", 0))


def _lost(merged: Array, base: Array, dtype: str) -> Array:
    result: Array = (merged != base) & (_stored(dtype, merged) == _stored(dtype, base))
    return result
