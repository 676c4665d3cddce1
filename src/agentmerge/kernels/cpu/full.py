"""All counts of a full probe in one pass; numpy definitions in survey/full/definitions.py.

Everything that depends only on who changed an element and on |base| comes from one table: elements by the exponent of
|base| and by the set of agents that changed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentmerge.kernels.arguments import MAGNITUDES, WIDTH, Sampled, Scratch, Sums, address, rows, spans
from agentmerge.tensors import LEAF, RUNNING, Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.tensors import Stack

MOST_AGENTS = 8
"""The table has 256 places per set of agents; with more agents the definition is used."""
COPIES = 4
"""Of the table, so that an element need not wait for the one before to be counted."""


class Asked(NamedTuple):
    """What is counted."""

    threshold: np.float32
    multipliers: Array
    """float32 [m], of a unique change."""
    share: np.float32
    """1 / agents."""
    pairs: Array
    """int64 [p, 2]"""


class Leaves(NamedTuple):
    """Which leaves are counted: those whose place, (leaf * MIX + key) mod 2^32, lies below `below`."""

    below: int
    key: int
    first: int
    """The first element's leaf in its tensor."""


class Room(NamedTuple):
    """Scratch memory."""

    scratch: Scratch
    raised: Array
    """uint64 [agents]: mask words like those of `scratch.changed`."""
    keys: Array
    """uint32 [WIDTH], to read single lanes of a vector from."""
    address: int
    """Of `keys`."""


class Tallies(NamedTuple):
    """What is counted, added to."""

    table: Array
    """int32 [COPIES, 256 << agents]: elements by the set of agents that changed them and by the exponent of |base|."""
    steps: Array
    """int64 [t, 5]: changed elements at least 1, 2, 3, 5 and 9 numbers away."""
    per_pair: Array
    """int64 [2, p]: changed by both in one direction, and by the same amount."""
    per_agent: Array
    """int64 [5, t]: changed, unique, shared, conflict, cancelled."""
    magnitudes: Array
    """int32 [t, MAGNITUDES]"""
    lost: Array
    """int64 [method, dtype, region, t]"""
    survived: Array
    """int64 [dtype, m, t]"""

    @classmethod
    def zero(cls, agents: int, pairs: int, multipliers: int) -> Tallies:
        """Nothing counted yet."""
        return cls(
            table=np.zeros((COPIES, 256 << agents), np.int32),
            steps=np.zeros((agents, 5), np.int64),
            per_pair=np.zeros((2, pairs), np.int64),
            per_agent=np.zeros((5, agents), np.int64),
            magnitudes=np.zeros((agents, MAGNITUDES), np.int32),
            lost=np.zeros((2, 3, 2, agents), np.int64),
            survived=np.zeros((3, multipliers, agents), np.int64),
        )


def full(
    stack: Stack, threshold: float, multipliers: Sequence[float], pairs: Sequence[tuple[int, int]], sampled: Sampled
) -> tuple[dict[str, Array], Array] | None:
    """See Backend.full."""
    from agentmerge.kernels.cpu.loops import full as loops

    n, p, size = len(stack.agents), len(pairs), stack.base.size
    if n > MOST_AGENTS or any(agent.dtype != stack.base.dtype for agent in stack.agents):
        return None
    tallies, width = Tallies.zero(n, p, len(multipliers)), 3 * (n + p)
    which = np.array(pairs, np.int64).reshape(p, 2)
    asked = Asked(np.float32(threshold), np.array(multipliers, np.float32), np.float32(1 / n), which)
    keys = np.zeros(WIDTH, np.uint32)
    room = Room(Scratch.of(n), np.zeros(n, np.uint64), keys, address(keys))
    leaves, running = np.zeros((-(-size // LEAF), width)), np.zeros((width, RUNNING))
    for sources, elements, at in spans(stack.base, stack.agents, multiple=LEAF):
        where = Leaves(2**32 // sampled.one_of, sampled.key, (sampled.start + at) // LEAF)
        sums = Sums(running, rows(running), leaves[at // LEAF :])
        loops.count(sources, elements, asked, where, room, tallies, sums)
    padding = -size % WIDTH if size and sampled.leaves(size)[-1] else 0
    return _counts(tallies, pairs, padding), leaves


def _counts(tallies: Tallies, pairs: Sequence[tuple[int, int]], padding: int) -> dict[str, Array]:
    """The counts by name, less so many elements of padding."""
    agents = len(tallies.steps)
    sets = tallies.table.sum(axis=0, dtype=np.int64).reshape(1 << agents, 256)
    sets[0, 0] -= padding
    steps, per_agent, per_pair = tallies.steps, tallies.per_agent, tallies.per_pair
    steps[:, :-1] -= steps[:, 1:].copy()
    counts = {"agree": per_pair[0], "equal": per_pair[1], "steps": steps}
    counts |= {"sampled": per_agent[:3], "conflict": per_agent[3], "cancelled": per_agent[4]}
    counts |= {"magnitudes": tallies.magnitudes.astype(np.int64), "lost": tallies.lost, "survived": tallies.survived}
    return {**counts, **_from_sets(sets, pairs)}


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
