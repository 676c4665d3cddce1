"""Spherical means of task vectors: of two agents along the arc between them, of many by their directions.

"Animating rotation with quaternion curves" (Shoemake, SIGGRAPH 1985), https://doi.org/10.1145/325165.325242; of the
task vectors of one task's policies in "WARP: On the Benefits of Weight Averaged Rewarded Policies",
https://arxiv.org/abs/2406.16768. Many: https://goddard.blog/posts/multislerp-wow-what-a-cool-idea.

    slerp        t      = weight[2] / (weight[1] + weight[2]);    th = the angle between tau[1] and tau[2]
                 merged = base + (sin((1 - t) th) tau[1] + sin(t th) tau[2]) / sin th
                 the straight mean (1 - t) tau[1] + t tau[2] where sin th < 1e-6; a right angle beside no change at all
    multislerp   w      = weight / sum of weights;    q = sum of w[t] tau[t] / norm tau[t]
                 merged = base + (sum of w[t] norm tau[t]) * q / norm q,    the base where norm q < 1e-7

per tensor, flattened; `per` row or column takes the vectors along the last axis, or along the first one. Agents in the
order of their names. Norms are not made equal by slerp: a unique element keeps sin(t pi / 2), 0.71 at equal weights and
a right angle. multislerp makes them equal: an agent of few changes is blown up to the mean norm, the others shrunk
(1.68, 0.45 and 0.41 of a unique element for densities of 3, 45 and 53 % on the golden set).

Where public codes disagree: this is mergekit's `nuslerp` with a base_model (`nuslerp_flatten: false` is per row, with
`nuslerp_row_wise` per column) and its `multislerp`, of which with weights of sum 1 this is left, `eps` 1e-8. mergekit's
`slerp` and `karcher` turn the weights themselves, not what was changed: next to the plain mean, which is `linear`.
Opposite task vectors have no arc: mergekit's result for them is rounding blown up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from agentmerge.errors import RecipeError, Where
from agentmerge.kernels import Kernel, formulas
from agentmerge.methods.base import Context, Dilution, MergeMethod, Work, added
from agentmerge.methods.directions import (
    columns_of,
    cosines,
    gram_at,
    products_of,
    row_grams,
    rows_of,
    vector_grams,
    weighted,
)
from agentmerge.survey.products import Products

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.statistic import Statistic, Survey
    from agentmerge.survey.sums import TreeSums
    from agentmerge.tensors import Array, Stack, TensorSpec

FLAT, OPPOSITE = 1e-6, 1e-7
"""The sine of an angle that counts as none, and the norm of a mean direction that counts as none."""


def arc(products: Array, weight: Array) -> Array:
    """The coefficients of slerp, float64 [..., 2].

    Args:
        products: inner products, float64 [..., 2, 2].
        weight: float64 [2], of another sum than 0.
    """
    t = weight[1] / weight.sum()
    angle = np.arccos(cosines(products)[..., 0, 1])
    sine = np.sin(angle)
    flat = sine < FLAT
    both = np.sin(np.stack([(1 - t) * angle, t * angle], axis=-1)) / np.where(flat, 1.0, sine)[..., None]
    return np.where(flat[..., None], np.array([1 - t, t]), both)


def mean_direction(products: Array, weight: Array, eps: float = 0.0) -> Array:
    """The coefficients of multislerp, float64 [..., agents]; those of a task vector that is 0 are 0.

    Args:
        products: inner products, float64 [..., agents, agents].
        weight: float64 [agents], of another sum than 0.
        eps: added to the norms that are divided by.
    """
    share, norm = weight / weight.sum(), np.sqrt(np.diagonal(products, axis1=-2, axis2=-1))
    part = np.where(norm > 0, share / np.where(norm > 0, norm + eps, 1.0), 0.0)
    size, square = np.zeros(norm.shape[:-1]), np.zeros(norm.shape[:-1])
    for s in range(len(share)):
        size = size + share[s] * norm[..., s]
        for t in range(len(share)):
            square = square + part[..., s] * part[..., t] * products[..., s, t]
    length = np.sqrt(np.maximum(square, 0))
    factor = np.where(length < OPPOSITE, 0.0, size / np.where(length < OPPOSITE, 1.0, length))
    return np.asarray(part * factor[..., None])


class Slerp(MergeMethod):
    """The task vector on the arc between those of two agents."""

    about: ClassVar[Mapping[str, str]] = {"slerp": "Slerp: along the arc between the task vectors of two agents."}

    name: Literal["slerp"] = "slerp"
    per: Literal["tensor", "row", "column"] = "tensor"
    """Of what the angle is taken: the flattened tensor, vectors along its last axis, or along its first one."""

    def bind(self, context: Context) -> Self:
        """An arc has two ends, and weights that do not cancel."""
        if len(context.weights) != 2:
            found = f"agents: slerp takes two agents, found {len(context.weights)}"
            raise RecipeError(found, todo="Use `multislerp` for more.", where=Where(path="agents"))
        _check_sum(context, "slerp")
        return self

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        """Rows, or all of it, where the angle is that of a row or column."""
        if self.per == "column":
            return Work("tensor", bytes=32 * tensor.elements)
        return Work("row" if self.per == "row" else "element")

    def ask(self, survey: Survey) -> tuple[Statistic[TreeSums], ...]:
        """The inner products; nothing where they are those of what one call sees."""
        return () if self.per != "tensor" or survey.knows(Products()) else (Products(),)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]."""
        if self.per == "tensor":
            return added(stack.base, weighted(stack.task_vectors(), self._coefficients(stack, survey)))
        weight = stack.weight().astype(np.float64)
        if self.per == "row":
            found = arc(row_grams(stack), weight).astype(np.float32)
            update = sum_of(rows_of(stack), found.T[:, :, None])
        else:
            tau = columns_of(stack)
            update = sum_of(tau, arc(vector_grams(tau), weight).astype(np.float32).T[:, None, :])
        return added(stack.base, update.reshape(-1))

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("linear",) if self.per == "tensor" else ("given",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass; none row by row or column by column."""
        if self.per != "tensor":
            return None
        settings = formulas.Linear(self.overlap.threshold, self._coefficients(stack, survey))
        return (Kernel("linear", settings, stack),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The coefficients of the angle over the whole checkpoint; of two agents alone."""
        if len(names) != 2:
            return Dilution.unknown(len(names), "takes two agents")
        return along(arc(products_of(energy), np.ones(2)), energy, "by the angle, norms as they are")

    def _coefficients(self, stack: Stack, survey: Survey) -> Array:
        return survey.derived(
            (self, stack.block.tensor.name, stack.weights),
            lambda: arc(gram_at(survey, stack), stack.weight().astype(np.float64)).astype(np.float32),
        )


class Multislerp(MergeMethod):
    """The mean direction of the task vectors, as long as they are on average."""

    about: ClassVar[Mapping[str, str]] = {"multislerp": "Multislerp: the mean direction of any number of task vectors."}

    name: Literal["multislerp"] = "multislerp"
    eps: float = Field(default=0.0, ge=0)
    """Added to the norms that are divided by; mergekit has 1e-8, which shows where changes are that small."""

    def bind(self, context: Context) -> Self:
        """The mean needs weights that do not cancel."""
        _check_sum(context, "multislerp")
        return self

    def ask(self, survey: Survey) -> tuple[Statistic[TreeSums], ...]:
        """The inner products."""
        return () if survey.knows(Products()) else (Products(),)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """The definition, float32 [n]; sums run over the agents in sorted-name order."""
        return added(stack.base, weighted(stack.task_vectors(), self._coefficients(stack, survey)))

    @property
    def loops(self) -> tuple[str, ...]:
        """See MergeMethod.loops."""
        return ("linear",)

    def kernel(self, stack: Stack, survey: Survey) -> Iterable[Kernel] | None:
        """The same in one compiled pass."""
        settings = formulas.Linear(self.overlap.threshold, self._coefficients(stack, survey))
        return (Kernel("linear", settings, stack),)

    def dilution(self, names: Sequence[str], counts: OverlapCounts, energy: Energy) -> Dilution:
        """The coefficients of the angles over the whole checkpoint."""
        found = mean_direction(products_of(energy), np.ones(len(names)))
        return along(found, energy, "agents of few changes are made as large as the others")

    def _coefficients(self, stack: Stack, survey: Survey) -> Array:
        def made() -> Array:
            found = mean_direction(gram_at(survey, stack), stack.weight().astype(np.float64), self.eps)
            return found.astype(np.float32)

        return survey.derived((self, stack.block.tensor.name, stack.weights), made)


def sum_of(tau: Array, coefficients: Array) -> Array:
    """The sum of coefficient * tau in the agents' order; float32 [agents, ...] both, or what broadcasts to it."""
    total = np.zeros(tau.shape[1:], np.float32)
    for row, coefficient in zip(tau, coefficients, strict=True):
        total += coefficient * row
    return total


def along(coefficients: Array, energy: Energy, note: str) -> Dilution:
    """What a sum of the task vectors by one number each makes of them."""
    products = products_of(energy)
    return Dilution(coefficients, coefficients @ products / np.diag(products), f"{note}; over all tensors together")


def _check_sum(context: Context, who: str) -> None:
    weights = context.weights.values()
    if abs(sum(weights)) <= 1e-6 * sum(map(abs, weights)):
        found = f"agents: the weights add up to 0, which `{who}` divides by"
        raise RecipeError(found, todo="Change one of them.", where=Where(path="agents"))
