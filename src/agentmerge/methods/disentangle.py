"""Disentangle: take from every task vector what they have in common, then merge by another method.

Ours, after "Multi-Task Model Merging via Adaptive Weight Disentanglement" (AWD), https://arxiv.org/abs/2411.18729,
whose code was never published: there delta is any vector, learned by gradients; here it lies in the span of the task
vectors.

    delta  = sum over s of a[s] tau[s]
    tau'[t] = tau[t] - delta
    a      = argmin of L_O + alpha L_R
    L_O    = mean over i != j of abs(cos(tau'[i], tau'[j]));   L_R = norm(delta) / mean over t of norm(tau[t])

Both follow from the products <tau[i], tau[j]> alone, so one fold and a problem of N unknowns replace the descent over
the whole model (methods/redundancy.py). With equal norms and one cosine s for every pair, m = (1 + (N - 1) s) / N, the
cosines vanish at a = c / N, c = 1 - sqrt(1 - s / m). Because both terms have kinks, alpha is nearly a switch: below
about 2 / sqrt(N) the angles become right ones (with two or three agents all of them), above it nothing is taken.

What it can do: task vectors that point the same way are told apart before TIES elects or RAM counts. What it can't:
around Task Arithmetic it is only a weighting, sum of tau'[t] = sum over s of (1 - N a[s]) tau[s]; agents that are
orthogonal already, as reinforcement learning leaves them, are left as they are; and where agents do overlap, tau' is
dense: an element that one agent changed becomes one that all changed, by -a[s] tau[s], so that RAM finds little that
is unique. What the agents have in common is taken N times and given back never: a merge that adds keeps less of it.

An agent that changed nothing has no say and gets nothing; neither does one where it is skipped or lacks the tensor.
`scope: tensor` asks of each tensor by itself. Where all of a are 0 this is the inner method, bit for bit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agentmerge.methods.base import Dilution
from agentmerge.methods.making import Maker, Making
from agentmerge.methods.redundancy import cosines, left, redundancy
from agentmerge.survey.full.definitions import pairs
from agentmerge.survey.products import Products
from agentmerge.survey.products import gram as gram_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.methods.base import Told
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.tensors import Array, Stack


def disentangled(tau: Array, coefficients: Array, takes_part: Sequence[bool]) -> Array:
    """The definition: tau' float32 [agents, n] of tau; agents that take no part keep theirs."""
    redundant = np.zeros(tau.shape[1], np.float32)
    for vector, coefficient in zip(tau, coefficients.astype(np.float32), strict=True):
        redundant += coefficient * vector
    return np.where(np.array(takes_part)[:, None], tau - redundant, tau)


class Disentangle(Making):
    """What task vectors have in common is taken away before another method merges them."""

    about: ClassVar[Mapping[str, str]] = {
        "disentangle": "Take what task vectors have in common out of them (ours, after AWD), then another method."
    }

    name: Literal["disentangle"] = "disentangle"
    alpha: float = Field(default=0.1, ge=0)
    """Price of what is taken, as a share of a task vector's norm, in cosines: 0.1. From about 2 / sqrt(N) on nothing
    is taken."""
    coefficients: Literal["each", "one"] = "each"
    """Whether every agent has a coefficient of its own in what is taken, or all of them the same."""
    scope: Literal["model", "tensor"] = "model"
    """What angles are measured over: the whole checkpoint, or each tensor."""

    def needs(self, survey: Survey) -> tuple[Statistic[Any], ...]:
        """The products of the task vectors."""
        return () if survey.knows(Products()) else (Products(),)

    def maker(self, survey: Survey) -> Taking:
        """What takes."""
        if self.scope == "model":
            self._found(survey, None)  # once, before all threads want it
        return Taking(json.dumps([self.alpha, self.coefficients, self.scope]), self, survey)

    def told(self, survey: Survey, names: tuple[str, ...]) -> Told:
        """What the inner method tells of what is left; the coefficients and mean cosines before and after.

        A scale of the inner method is none here: it is not what becomes of an element.
        """
        told = replace(super().told(survey, names), scales=None)
        if self.scope != "model" or not survey.knows(Products()):
            return told
        gram, (a, _) = gram_matrix(survey.total(Products())), self._found(survey, None)
        found = {"coefficients": dict(zip(names, a.tolist(), strict=True))}
        cosine = {"before": _mean_cosine(gram), "after": _mean_cosine(left(gram, a))}
        return replace(told, learned={**told.learned, "disentangled": {**found, "mean_cosine": cosine}})

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """Around a sum, (1 - a[s] N) times its multiplier; what others make of dense task vectors is not known."""
        inner = super().dilution(names, counts, energy)
        if not inner.linear or self.scope == "tensor":
            return Dilution.unknown(len(names), "depends on what the task vectors have in common")
        gram = np.diag(energy.unique + energy.shared)
        for p, (s, t) in enumerate(pairs(len(names))):
            gram[s, t] = gram[t, s] = energy.dot[p]
        multiplier = inner.multiplier - redundancy(gram, self.alpha, same=self.coefficients == "one") * sum(
            inner.multiplier * (np.diagonal(gram) > 0)
        )
        retention = np.array([float((multiplier * row).sum()) for row in gram]) / np.diagonal(gram)
        return Dilution(multiplier, retention, "a weighting, from the products of the changes", linear=True)

    def taken_from(self, stack: Stack, survey: Survey) -> Stack:
        """The stack with what is left of its task vectors; the same stack where nothing is taken."""
        tensor = stack.block.tensor.name if self.scope == "tensor" else None
        a, alive = self._found(survey, tensor)
        if not a.any():
            return stack
        takes_part = [bool(one) and name not in stack.absent for one, name in zip(alive, stack.names, strict=True)]
        return replace(stack, tau=disentangled(stack.task_vectors(), a, takes_part))

    def _found(self, survey: Survey, tensor: str | None) -> tuple[Array, Array]:
        """The coefficients, and who changed anything, of one tensor or of the whole checkpoint."""

        def make() -> tuple[Array, Array]:
            sums = survey.total(Products())
            gram = gram_matrix(sums if tensor is None else sums.of(tensor))
            return redundancy(gram, self.alpha, same=self.coefficients == "one"), np.diagonal(gram) > 0

        return survey.derived((self, tensor), make)


@dataclass(frozen=True)
class Taking(Maker):
    """Takes what task vectors have in common."""

    settings: str
    """What decides what is taken."""
    method: Any = field(compare=False, repr=False)
    survey: Survey = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """The settings."""
        return f"Disentangled {self.settings}"

    def __call__(self, stack: Stack) -> Stack:
        """The stack with what is left of its task vectors."""
        left_of: Stack = self.method.taken_from(stack, self.survey)
        return left_of


def _mean_cosine(gram: Array) -> float:
    """The mean magnitude of the cosines of pairs of agents that changed something; 0 where there is no pair."""
    alive = np.flatnonzero(np.diagonal(gram) > 0)
    if len(alive) < 2:
        return 0.0
    found = np.abs(cosines(gram[np.ix_(alive, alive)]))
    return float((found.sum() - np.trace(found)) / (len(alive) * (len(alive) - 1)))
