"""What is redundant between task vectors, within their span: from their products alone, in float64.

G[i, j] = <tau[i], tau[j]>; delta = sum over s of a[s] tau[s] is taken from every task vector, which leaves

    G'[i, j] = G[i, j] - g[i] - g[j] + q            g = G a, q = a^T G a = norm(delta)^2
    L_O      = mean over i != j of abs(G'[i, j]) / sqrt(G'[i, i] G'[j, j])        how far from orthogonal they are
    L_R      = sqrt(q) / mean over t of sqrt(G[t, t])                             how much was taken
    a        = argmin of L_O + alpha L_R: of one c, a = c / agents, from 0; then of each a by itself, from there

Both terms have kinks, so they are smoothed, abs(x) as sqrt(x^2 + d^2), and minimised by BFGS for ever smaller d. There
are other local minima, far away, where what is left of an agent is mostly the others: the way by c keeps off them.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.tensors import Array

SMOOTHING = tuple(10.0 ** (-k / 2) for k in range(2, 19))
"""d, from one stage to the next."""
STEPS = 100
"""Of BFGS in a stage, at most."""
ENOUGH = 1e-3
"""A stage ends where a step gains less than this share of d."""
LONGEST, SHORTEST = 0.02, 1e-12
"""A step, by its largest coefficient, and the share of one that is tried before a stage ends. Small steps keep on the
way: of 60 made-up sets of two to five agents, 0.5 ended in a worse minimum in three, 0.02 in none."""
TINY = float(np.finfo(float).tiny)


def redundancy(products: Array, alpha: float, *, same: bool = False) -> Array:
    """The coefficients a of the redundant vector, float64 [agents]; 0 of an agent that changed nothing.

    Args:
        products: <tau[i], tau[j]>, float64 [agents, agents].
        alpha: weight of L_R.
        same: one coefficient for all agents.
    """
    found = np.zeros(len(products))
    alive = np.flatnonzero(np.diagonal(products) > 0)
    if len(alive) < 2 or not np.isfinite(products).all():
        return found
    gram = products[np.ix_(alive, alive)] / np.diagonal(products)[alive].mean()
    ones, each = np.full((len(alive), 1), 1 / len(alive)), np.eye(len(alive))
    best = np.zeros(len(alive))
    for basis in (ones,) if same else (ones, each):
        other = _minimised(gram, basis, alpha, best)
        if loss(gram, other, alpha) < loss(gram, best, alpha):
            best = other
    found[alive] = best
    return found


def loss(gram: Array, a: Array, alpha: float) -> float:
    """L_O + alpha L_R of task vectors none of which is zero."""
    return _smoothed(gram, a, alpha, 0.0)[0]


def left(gram: Array, a: Array) -> Array:
    """G', float64 [agents, agents]: the products of what is left of the task vectors."""
    g = gram @ a
    found: Array = gram - g[:, None] - g + a @ g
    return found


def cosines(gram: Array) -> Array:
    """Of each pair of task vectors; an agent that has none is at a right angle to everybody."""
    size = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    size = np.where(size > 0, size, np.inf)
    return gram / size[:, None] / size


def _smoothed(gram: Array, a: Array, alpha: float, d: float) -> tuple[float, Array]:
    """The loss with abs(x) as sqrt(x^2 + d^2), and its gradient."""
    agents, g = len(a), gram @ a
    q = max(float(a @ g), 0.0)
    rest = gram - g[:, None] - g + q
    own = np.sqrt(np.maximum(rest.diagonal(), TINY))
    outer = own[:, None] * own
    cosine = rest / outer
    cosine.flat[:: agents + 1] = 0.0
    bent, norm, mean = np.sqrt(cosine * cosine + d * d), sqrt(q + d * d), float(np.sqrt(gram.diagonal()).sum()) / agents
    pairs = agents * (agents - 1)
    value = (float(bent.sum()) - agents * d) / pairs + alpha * norm / mean
    slope = cosine / np.maximum(bent, TINY) / pairs
    weight = slope / outer
    weight.flat[:: agents + 1] = -(slope * cosine).sum(axis=1) / own**2
    each = weight.sum(axis=1)
    gradient: Array = 2 * (g * each.sum() - gram @ each)
    return value, gradient + (alpha / mean / norm * g if norm else 0.0)


def _minimised(gram: Array, basis: Array, alpha: float, start: Array) -> Array:
    """Where the loss is least around `start`, moved within the basis [agents, k]."""
    place = np.zeros(basis.shape[1])
    for d in SMOOTHING:

        def at(point: Array, d: float = d) -> tuple[float, Array]:
            value, gradient = _smoothed(gram, start + basis @ point, alpha, d)
            return value, gradient @ basis

        place = _descended(at, place, ENOUGH * d)
    found: Array = start + basis @ place
    return found


def _descended(at: Callable[[Array], tuple[float, Array]], place: Array, enough: float) -> Array:
    """Where BFGS ends from `place`; `at` gives value and gradient."""
    value, gradient = at(place)
    inverse = np.eye(len(place))
    for _ in range(STEPS):
        step = -inverse @ gradient
        step *= min(1.0, LONGEST / max(float(abs(step).max()), 1e-300))
        slope = float(step @ gradient)
        if not -slope > enough:
            break
        share = 1.0
        while not (found := at(place + share * step))[0] <= value + 1e-4 * share * slope:
            share /= 2
            if share < SHORTEST:
                return place
        moved, turned, gained = share * step, found[1] - gradient, value - found[0]
        place, (value, gradient) = place + moved, found
        if gained < enough:
            break
        inverse = _updated(inverse, moved, turned)
    return place


def _updated(inverse: Array, moved: Array, turned: Array) -> Array:
    """The next approximation of the inverse Hessian."""
    along = float(moved @ turned)
    if not along > 1e-300:
        return inverse
    pushed = inverse @ turned
    factor = (1 + float(turned @ pushed) / along) / along
    crossed = pushed[:, None] * moved
    found: Array = inverse + factor * moved[:, None] * moved - (crossed + crossed.T) / along
    return found
