"""The fused kernels for CPUs that make arrays: merge and drop, equal to their definitions bit for bit.

One pass over memory each. numba is imported at the first call, or by `warm_up`. Knows no statistics and no methods:
plain arrays in and out.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.call import CODES, LANES, Destination, Rule, address, check, pieces, rows
from agentmerge.tensors import DTYPES, Array

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_AGENTS = 64


def supports(base: Array, agents: Sequence[Array], out_dtype: str | None = None, extra: Sequence[Array] = ()) -> bool:
    """Whether the kernels take these arrays (BF16, F16 or F32, contiguous, 1 to 64 agents) and this output dtype."""
    return (
        1 <= len(agents) <= MOST_AGENTS
        and all(array.dtype in CODES and array.flags.c_contiguous for array in (base, *agents, *extra))
        and (out_dtype is None or DTYPES.get(out_dtype) in CODES)
    )


def warm_up() -> None:
    """Compile the kernels that every merge runs, or load them from numba's cache; the others follow when called."""
    warm_up_folds()
    from agentmerge.kernels import merging  # noqa: F401


def warm_up_folds() -> None:
    """Only those that every fold runs."""
    from agentmerge.kernels import counting  # noqa: F401


def merge(
    base: Array,
    agents: Sequence[Array],
    rule: Rule,
    out: Array,
    draw: tuple[int, int] | None,
    start: int,
    tau: Array | None = None,
    extra: Sequence[Array] = (),
) -> tuple[Array, Array, Array, Array, int, int]:
    """A method's merge, Cast.apply and survey.observe_rounding in one pass; the result goes to `out`.

    Args:
        base: [n], stored dtype.
        agents: [n] each, stored dtypes in any mix.
        rule: which method, and its settings.
        out: [n], BF16, F16 or F32; written.
        draw: Philox key of stochastic rounding; None rounds to nearest.
        start: flat index of base[0] in its tensor, a multiple of 4.
        tau: float32 [agents, n], task vectors that a wrapping method made; the rounding is observed of the agents.
        extra: [n] each: the importance of every agent, or the merge that the rule is given, float32.

    Returns:
        changed, lost, unique, survived int64 [agents]; overflow, non_finite: the fields of RoundingCounts.
    """
    from agentmerge.kernels import merging

    check(base, out)
    agent_count, rule = len(agents), rule.typed()
    exact = out.dtype == np.float32 or {base.dtype, *(agent.dtype for agent in agents)} == {out.dtype}
    tally, broken = np.zeros((4, agent_count), np.int64), np.zeros(2, np.int64)
    scratch = np.empty((agent_count, LANES), np.float32)
    for sources, size, at in pieces(base, agents, tau, extra):
        room = out[at:]
        stored = room[:size] if room.size >= size else np.empty(size, out.dtype)
        to = Destination(address(stored), CODES[out.dtype], exact, draw is not None, *(draw or (0, 0)), start + at)
        merging.merge(sources, rows(scratch), size, rule, to, tally, broken)
        if stored.size > room.size:
            room[:] = stored[: room.size]
            broken[1] -= np.isnan(stored[room.size :]).sum()  # what an infinite scale makes of the padding
    return tally[0], tally[1], tally[2], tally[3], int(broken[0]), int(broken[1])


def drop(
    base: Array,
    agents: Sequence[Array],
    keys: Sequence[tuple[int, int]],
    density: float,
    start: int,
    tau: Array | None = None,
) -> Array:
    """methods.dare.drop: task vectors dropped and rescaled, float32 [agents, n].

    Args:
        base: [n], stored dtype.
        agents: [n] each, stored dtypes in any mix.
        keys: Philox key of every agent's draws.
        density: kept fraction, (0, 1].
        start: flat index of base[0] in its tensor, a multiple of 4.
        tau: float32 [agents, n], task vectors that a wrapping method made.
    """
    from agentmerge.kernels import dropping

    dropped = np.empty((len(agents), base.size + -base.size % LANES), np.float32)
    last = ceil(density * 2.0**32) - 1
    for sources, size, at in pieces(base, agents, tau):
        out = rows(dropped[:, at : at + size])
        dropping.drop(sources, size, np.array(keys, np.int64), last, density, start + at, out)
    return dropped[:, : base.size]
