"""Angles between task vectors, of a tensor or of each of its rows, and sums of task vectors by one number each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.survey.full.definitions import pairs
from agentmerge.survey.products import Products, gram

if TYPE_CHECKING:
    from agentmerge.survey.full.question import Energy
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack


def gram_at(survey: Survey, stack: Stack) -> Array:
    """The inner products of the task vectors of a stack's tensor, float64 [agents, agents]."""
    return gram(survey.total(Products()).of(stack.block.tensor.name))


def row_grams(stack: Stack) -> Array:
    """The same of each row of a stack of whole rows, float64 [rows, agents, agents]; every sum in one order."""
    return vector_grams(rows_of(stack).transpose(0, 2, 1))


def vector_grams(tau: Array) -> Array:
    """The inner products along the middle axis of float32 [agents, n, vectors], float64 [vectors, agents, agents]."""
    agents, _, vectors = tau.shape
    found = np.zeros((vectors, agents, agents))
    for s in range(agents):
        for t in range(s, agents):
            found[:, s, t] = found[:, t, s] = _added_up(tau[s], tau[t])
    return found


def columns_in(stack: Stack) -> int:
    """Elements of a row of the stack; a stack that is no whole rows is one row."""
    columns, size = stack.block.tensor.columns, stack.base.size
    return columns if 0 < columns <= size and size % columns == 0 else size


def rows_of(stack: Stack) -> Array:
    """The task vectors as float32 [agents, rows, columns]."""
    tau, columns = stack.task_vectors(), columns_in(stack)
    return tau.reshape(len(tau), stack.base.size // max(columns, 1), columns)


def columns_of(stack: Stack) -> Array:
    """The task vectors of a whole tensor as float32 [agents, n, columns], n its first axis; one column of one axis."""
    tau, shape = stack.task_vectors(), stack.block.tensor.shape
    first = shape[0] if len(shape) > 1 and stack.base.size == stack.block.tensor.elements else stack.base.size
    return tau.reshape(len(tau), first, stack.base.size // max(first, 1))


def _added_up(left: Array, right: Array) -> Array:
    """The sum of left * right over the first axis of float32 [n, vectors] in float64, folded in halves.

    So every vector is added up in the same order, however many there are.
    """
    values = left.astype(np.float64) * right
    while len(values) > 1:
        half = len(values) // 2
        values = np.concatenate([values[:half] + values[half : 2 * half], values[2 * half :]])
    return values[0] if len(values) else np.zeros(values.shape[1])


def cosines(gram: Array, floor: float = 0.0) -> Array:
    """Of inner products float64 [..., agents, agents]; 0 beside a task vector that is 0. Between -1 and 1.

    Args:
        gram: the products.
        floor: a product of two norms counts as this much where it is less.
    """
    norm = np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))
    product = np.maximum(norm[..., :, None] * norm[..., None, :], floor)
    return np.where(product > 0, np.clip(gram / np.where(product > 0, product, 1.0), -1, 1), 0.0)


def products_of(energy: Energy) -> Array:
    """The inner products of the agents' changed elements over the whole checkpoint, float64 [agents, agents]."""
    found = np.diag(energy.unique + energy.shared).astype(np.float64)
    for p, (s, t) in enumerate(pairs(len(found))):
        found[s, t] = found[t, s] = energy.dot[p]
    return found


def weighted(tau: Array, coefficients: Array) -> Array:
    """The sum of coefficient * tau in the agents' order, float32 [n].

    Args:
        tau: float32 [agents, n].
        coefficients: float32 [agents].
    """
    total = np.zeros(tau.shape[1], np.float32)
    for coefficient, row in zip(coefficients, tau, strict=True):
        total += coefficient * row
    return total
