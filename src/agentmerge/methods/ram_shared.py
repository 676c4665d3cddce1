"""What becomes of an element that several agents changed: RAM's mean and its relatives.

    mean        sum over the agents that changed it / c^power            power 1 is RAM, 0 is `sum`
    sum         their sum: task arithmetic on the changed elements
    elect       the same mean over those whose sign is that of their sum; none, where the sum is 0
    importance  their mean weighted by importance; the plain mean where no importance is known
    winner      the one to whose agent the element is most important; of equally important ones the largest
    largest     the one of the largest magnitude; of equal ones the first by its agent's name

"Behavior Knowledge Merge in Reinforced Agentic Models" (arXiv 2601.13572) averages and names sign conflicts and
importance as its limitations 1 and 2; the other choices are ours, and `winner` is a part of SAR-Merging (arXiv
2606.18521), where the Fisher decides who takes an overlap. Shared changes of RL agents are nearly uncorrelated,
so their mean keeps only about 1 / c of each: hence the power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from agentmerge.kernels import formulas
from agentmerge.kernels.formulas import ELECT, IMPORTANCE, LARGEST, MEAN, WINNER
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Stack

Shared = Literal["mean", "sum", "elect", "importance", "winner", "largest"]


_CHOICES: dict[str, int] = {
    "mean": MEAN,
    "sum": MEAN,
    "elect": ELECT,
    "importance": IMPORTANCE,
    "winner": WINNER,
    "largest": LARGEST,
}


def shared_update(stack: Stack, updates: Array, changed: Array, shared: Shared, power: float) -> Array:
    """The update of every element as if it were shared, float32 [n]; sums run over the agents in their order.

    Args:
        stack: for the importance, where it is asked for.
        updates: float32 [agents, n], weight times task vector.
        changed: bool [agents, n].
        shared: see the file's head.
        power: of the count that sums are divided by.
    """
    total = _sum(updates, changed)
    if shared == "importance":
        return _importance_mean(stack, updates, changed, total)
    if shared in ("winner", "largest"):
        return _winner(updates, changed, _importance(stack) if shared == "winner" else np.zeros_like(updates))
    if shared == "elect":
        changed = changed & (np.sign(updates) == np.sign(total)) & (total != 0)
        total = _sum(updates, changed)
    return total / _divisor(changed.sum(axis=0), len(updates), 0.0 if shared == "sum" else power)


def shared_settings(stack: Stack, shared: Shared, power: float) -> formulas.Shared:
    """A kernel's settings for the same."""
    return formulas.Shared(
        choice=_CHOICES[shared],
        power=0.0 if shared == "sum" else power,
        weight=stack.weight(),
        table=_powers(len(stack.agents), power),
    )


def _sum(updates: Array, chosen: Array) -> Array:
    total = np.zeros(updates.shape[1], np.float32)
    for update, taken in zip(updates, chosen, strict=True):
        total += np.where(taken, update, np.float32(0))
    return total


def _divisor(count: Array, agents: int, power: float) -> Array:
    """count^power, float32 [n], from a table rounded once; 1 where the count is 0."""
    divisor: Array = _powers(agents, power)[count]
    return divisor


def _powers(agents: int, power: float) -> Array:
    return np.array([1.0, *(float(k) ** power for k in range(1, agents + 1))], np.float32)


def _importance(stack: Stack) -> Array:
    return np.stack([as_float32(raw) for raw in stack.extra["importance"]])


def _winner(updates: Array, changed: Array, importance: Array) -> Array:
    """The most important update, of equally important ones the largest, of equal ones the first; float32 [n]."""
    taken, most, size = (np.full(updates.shape[1], start, np.float32) for start in (0, -1, -1))
    for update, by, mine in zip(updates, changed, importance, strict=True):
        better = by & ((mine > most) | ((mine == most) & (np.abs(update) > size)))
        taken = np.where(better, update, taken)
        most, size = np.where(better, mine, most), np.where(better, np.abs(update), size)
    return taken


def _importance_mean(stack: Stack, updates: Array, changed: Array, total: Array) -> Array:
    importance = _importance(stack)
    divisor = _sum(importance, changed)
    mean = _sum(importance * updates, changed) / np.where(divisor == 0, np.float32(1), divisor)
    return np.where(divisor == 0, total / _divisor(changed.sum(axis=0), len(updates), 1.0), mean)
