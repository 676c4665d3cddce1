"""What a full probe counts, by one compiled pass; equal to survey/profiling.py bit for bit. Knows no statistics.

numba is imported at the first call. Everything that depends only on who changed an element and on |base| comes from
one table: elements by the exponent of |base| and by the set of agents that changed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.call import CODES, LANES, pieces, rows
from agentmerge.tensors import LEAF, Array

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_AGENTS = 8
"""The table has 256 places per set of agents; with more agents the definition is used."""
MAGNITUDES = 4096
"""survey.profiling.MAGNITUDES; the rooms are strangers, a test keeps them equal."""
MIX = 0x9E3779B1
"""survey.integrity.MIX, likewise."""
COPIES = 4
"""Of the table, so that an element need not wait for the one before to be counted."""


def supports(base: Array, agents: Sequence[Array]) -> bool:
    """Whether the kernel takes these arrays: all of one dtype, BF16, F16 or F32, contiguous, 1 to 8 agents."""
    return 1 <= len(agents) <= MOST_AGENTS and all(
        array.dtype == base.dtype and array.dtype in CODES and array.flags.c_contiguous for array in (base, *agents)
    )


def count(
    base: Array,
    agents: Sequence[Array],
    threshold: float,
    multipliers: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    sample: int,
    key: int,
    start: int,
) -> tuple[dict[str, Array], Array]:
    """The counts of survey.profile.ProfileCounts by name, and its energies, float64 [leaves, 3 agents + 3 pairs].

    Args:
        base: [n], stored dtype.
        agents: [n] each, the same dtype.
        threshold: of a change.
        multipliers: of a unique change.
        pairs: of agents.
        sample: see survey.profiling.sampled; one of so many leaves.
        key: of the tensor's sample.
        start: flat index of base[0] in its tensor, a multiple of LEAF.
    """
    from agentmerge.kernels import profiling

    n, p = len(agents), len(pairs)
    width = 3 * (n + p)
    table, steps = np.zeros((COPIES, 256 << n), np.int32), np.zeros((n, 5), np.int64)
    per_pair, per_agent = np.zeros((2, p), np.int64), np.zeros((5, n), np.int64)
    magnitudes = np.zeros((n, MAGNITUDES), np.int32)
    lost, survived = np.zeros((2, 3, 2, n), np.int64), np.zeros((3, len(multipliers), n), np.int64)
    leaves, running = np.zeros((-(-base.size // LEAF), width)), np.zeros((width, LANES))
    scratch, room = np.zeros((n, LANES), np.float32), np.zeros((1, LANES), np.uint32)
    which, factors = np.array(pairs, np.int64).reshape(p, 2), np.array(multipliers, np.float32)
    for sources, size, at in pieces(base, agents, multiple=LEAF):
        profiling.count(
            sources, size, threshold, factors, 1 / n, which, rows(scratch), room[0], rows(room)[0],
            2**32 // sample, key, (start + at) // LEAF,
            table, steps, per_pair, per_agent, magnitudes, lost, survived, running, rows(running), leaves[at // LEAF :],
        )  # fmt: skip
    sets = table.sum(axis=0, dtype=np.int64).reshape(1 << n, 256)
    if base.size and sampled_leaves(base.size, sample, key, start)[-1]:
        sets[0, 0] -= -base.size % LANES  # the padding
    steps[:, :-1] -= steps[:, 1:].copy()
    counts = {"agree": per_pair[0], "equal": per_pair[1], "steps": steps}
    counts |= {"sampled": per_agent[:3], "conflict": per_agent[3], "cancelled": per_agent[4]}
    counts |= {"magnitudes": magnitudes.astype(np.int64), "lost": lost, "survived": survived}
    return {**counts, **_from_sets(sets, pairs)}, leaves


def sampled_leaves(elements: int, sample: int, key: int, start: int) -> Array:
    """Which leaves of a block are sampled, bool [leaves]; see survey.profiling.sampled."""
    leaves = start // LEAF + np.arange(-(-elements // LEAF))
    chosen: Array = (leaves * MIX + key) % 2**32 < 2**32 // sample
    return chosen


def _from_sets(sets: Array, pairs: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """Counts from the elements by the set of agents that changed them and by exponent, int64 [2^agents, 256]."""
    agents = len(sets).bit_length() - 1
    names = np.arange(len(sets))
    members = np.array([names >> t & 1 for t in range(agents)], np.bool_)  # [agents, sets]
    both = [sets[members[s] & members[t]].sum(axis=0) for s, t in pairs]
    return {
        "elements": sets.sum(axis=0),
        "changed": np.stack([sets[row].sum(axis=0) for row in members]),
        "both": np.array(both, np.int64).reshape(len(pairs), 256),
    }


def retention(base: Array, agents: Sequence[Array], stored: Array, threshold: float) -> Array:
    """survey.RegionRetention, float64 [leaves, 4 * agents]; dtypes in any mix that cpu.supports."""
    from agentmerge.kernels import keeping

    width = 4 * len(agents)
    sums, running = np.empty((-(-base.size // LEAF), width)), np.zeros((width, LANES))
    scratch = np.zeros((len(agents), LANES), np.float32)
    for sources, size, at in pieces(base, agents, extra=(stored,), multiple=LEAF):
        keeping.retention(sources, rows(scratch), size, threshold, running, rows(running), sums[at // LEAF :])
    return sums


def warm_up() -> None:
    """Compile the loop of a full probe, or load it from numba's cache."""
    from agentmerge.kernels import profiling  # noqa: F401
