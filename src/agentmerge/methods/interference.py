"""How much task vectors of a matrix interfere, and the least of it, over numpy or torch arrays.

Task vectors tau[i] are [out, in], n[i] = ||tau[i]||_F^2, S is their sum, M = S + D the merged one:

    loss     = sum_i ||(M - tau[i]) tau[i]^T||_F^2 / n[i]
    gradient = 2 (M A - B) = 2 (D A + E)
    A = sum_i tau[i]^T tau[i] / n[i]                  [in, in], its trace is the number of agents
    B = sum_i tau[i] tau[i]^T tau[i] / n[i]           [out, in]
    E = S A - B = sum_i (S - tau[i]) tau[i]^T tau[i] / n[i]     so that nothing cancels, and one agent gives exactly 0

The *input* form holds A; the *stacked* form holds T, the tau[i] / sqrt(n[i]) above each other [N * out, in]: A = T^T T.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.methods.arrays import Arrays

Form = Literal["input", "stacked"]

BETAS, EPS = (0.9, 0.999), 1e-8
"""Adam's, as torch.optim.Adam has them."""


@dataclass(frozen=True)
class Interference:
    """The loss around the sum of the task vectors, a quadratic in the correction D, in one of the two forms."""

    xp: Any
    slope: Any
    """E: half the gradient at D = 0, [out, in]."""
    gram: Any = None
    """A [in, in], in the input form."""
    units: Any = None
    """T [N * out, in], in the stacked form."""

    @classmethod
    def of(cls, taus: Sequence[Any], form: Form, xp: Any) -> Interference:
        """Around the sum of task vectors, [out, in] each and none of them zero."""
        total = sum(taus[1:], start=taus[0])
        rows, columns = total.shape
        slope, gram, units = xp.zeros_like(total), None, []
        for tau in taus:
            unit, apart = tau / norm(tau), total - tau
            if form == "stacked":
                units.append(unit)
                slope += (apart @ unit.T) @ unit
                continue
            own = unit.T @ unit
            slope += apart @ own if columns <= 2 * rows else (apart @ unit.T) @ unit
            if gram is None:
                gram = own
            else:
                gram += own
        return cls(xp, slope, gram, xp.concatenate(units) if units else None)

    def gradient(self, correction: Any, out: Any) -> None:
        """2 (D A + E) into `out`, [out, in]."""
        if self.gram is not None:
            self.xp.matmul(correction, self.gram, out=out)
        else:
            self.xp.matmul(correction @ self.units.T, self.units, out=out)
        out += self.slope
        out *= 2


def norm(tau: Any) -> float:
    """||tau||_F, scaled by the largest element first, so that no square is lost below float32."""
    largest = float(abs(tau).max())
    return largest * sqrt(float(((tau / largest) ** 2).sum()))


def descend(taus: Sequence[Any], *, steps: int, rate: float, form: Form, arrays: Arrays) -> Any:
    """The correction D that Adam reaches from the sum, without autograd, in float32.

        m = b1 m + (1 - b1) g;    v = b2 v + (1 - b2) g^2
        D = D - rate / (1 - b1^k) * m / (sqrt(v) / sqrt(1 - b2^k) + eps)         at step k = 1, 2, ..., steps

    Args:
        taus: float32 [out, in] each, none of them zero.
        steps: of the descent.
        rate: most that one step moves an element, more or less.
        form: how the gradient is computed.
        arrays: the library that computes.

    Returns:
        float32 [out, in], an array of that library.
    """
    xp, (b1, b2) = arrays.xp, BETAS
    loss = Interference.of([arrays.put(tau, "float32") for tau in taus], form, xp)
    correction, mean, square, gradient, scratch = (xp.zeros_like(loss.slope) for _ in range(5))
    for step in range(1, steps + 1):
        loss.gradient(correction, out=gradient)
        mean *= b1
        mean += xp.multiply(gradient, 1 - b1, out=scratch)
        square *= b2
        xp.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - b2
        square += scratch
        xp.sqrt(square, out=scratch)
        scratch /= sqrt(1 - b2**step)
        scratch += EPS
        xp.divide(mean, scratch, out=scratch)
        scratch *= rate / (1 - b1**step)
        correction -= scratch
    return correction


def solve(taus: Sequence[Any], *, ridge: float, form: Form, arrays: Arrays) -> Any:
    """The M = S + D that minimises loss(M) + mu ||D||_F^2, mu = ridge * trace(A) / in, in float64.

        input:   M (A + mu I) = B + mu S                                                [in, in]
        stacked: D = -C (K + mu I)^-1 T,   K = T T^T,                                   [N * out, N * out]
                 C[i] = (S - tau[i]) T[i]^T = sum over j != i of sqrt(n[j]) K[j, i]     beside each other [out, N * out]

    The two are equal: S A - B = C T, and T (T^T T + mu I)^-1 = (T T^T + mu I)^-1 T. Both systems are positive definite
    and solved by Cholesky. The input form takes agent by agent and holds none of them.

    Args:
        taus: float32 [out, in] each, none of them zero; the first is asked for its shape, then each once, in order.
        ridge: pull towards the sum; trace(A) / in is the mean eigenvalue of A.
        form: which of the two systems.
        arrays: the library that computes.

    Returns:
        float64 [out, in], an array of that library.
    """
    columns = taus[0].shape[1]
    pull = ridge * len(taus) / columns
    held = (arrays.put(tau, "float64") for tau in taus)
    if form == "stacked":
        return _from_outputs(held, pull, arrays)
    total, gram, right = _summed(held, arrays)
    right += pull * total
    return arrays.solved(gram, pull, right)


def _from_outputs(held: Iterator[Any], pull: float, arrays: Arrays) -> Any:
    """The stacked form."""
    total, lengths, units = None, [], []
    for tau in held:
        total = tau if total is None else total + tau
        lengths.append(norm(tau))
        units.append(tau / lengths[-1])
    rows, unit = len(units[0]), arrays.xp.concatenate(units)
    del units
    products = unit @ unit.T
    right = arrays.xp.zeros_like(products[:rows])
    for i in range(len(lengths)):
        mine = slice(i * rows, (i + 1) * rows)
        for j, length in enumerate(lengths):
            if j != i:
                right[:, mine] += length * products[j * rows : (j + 1) * rows, mine]
    return total - arrays.solved(products, pull, right) @ unit


def _summed(held: Iterator[Any], arrays: Arrays) -> tuple[Any, Any, Any]:
    """S, A and B of task vectors that come one by one."""
    total, gram, right = None, None, None
    for tau in held:
        rows, columns = tau.shape
        unit = tau / norm(tau)
        own = arrays.gram(unit)
        part = arrays.times(tau, own) if 2 * columns <= 3 * rows else (tau @ unit.T) @ unit
        if total is None:
            total, gram, right = tau, own, part
        else:
            total, gram, right = total + tau, gram + own, right + part
    return total, gram, right


def descent_flop(rows: int, columns: int, agents: int, steps: int) -> dict[Form, float]:
    """What `descend` takes in each form, FLOP."""
    setup = agents * _gram_flop(rows, columns)
    return {
        "input": setup + steps * 2.0 * rows * columns**2,
        "stacked": agents * (1 + steps) * 4.0 * rows**2 * columns,
    }


def solution_flop(rows: int, columns: int, agents: int) -> dict[Form, float]:
    """What `solve` takes in each form, FLOP."""
    stacked = agents * rows
    return {
        "input": agents * _half_gram_flop(rows, columns) + columns**3 / 3 + 2.0 * rows * columns**2,
        "stacked": stacked**2 * (columns + 2.0 * rows) + stacked**3 / 3 + 2.0 * rows * stacked * columns,
    }


def _gram_flop(rows: int, columns: int) -> float:
    """One agent's part of A and E."""
    return 2.0 * rows * columns**2 + min(2.0 * rows * columns**2, 4.0 * rows**2 * columns)


def _half_gram_flop(rows: int, columns: int) -> float:
    """One agent's part of A, of which half is computed, and of B."""
    return rows * columns**2 + min(2.0 * rows * columns**2, 3.0 * rows**2 * columns)


def cheaper(flop: dict[Form, float]) -> Form:
    """The form that takes less."""
    return "stacked" if flop["stacked"] < flop["input"] else "input"
