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
from functools import reduce
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentmerge.methods.vectors import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    def of(cls, taus: Sequence[Any], form: Form, xp: Any, kept: Any = None) -> Interference:
        """Around the sum of task vectors [out, in], none of them zero; P of `solve` is overwritten."""
        total = sum(taus[1:], start=taus[0])
        rows, columns = total.shape
        slope, gram, units = xp.zeros_like(total) if kept is None else total @ kept, kept, []
        for tau in taus:
            unit, apart = tau / norm(tau), total - tau
            if form == "stacked":
                units.append(unit)
                slope += (apart @ unit.T) @ unit
                continue
            own = unit.T @ unit
            slope += apart @ own if columns <= 2 * rows else (apart @ unit.T) @ unit
            gram = own if gram is None else _added(gram, own)
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


def descend(taus: Sequence[Any], *, steps: int, rate: float, form: Form, arrays: Arrays, kept: Any = None) -> Any:
    """The correction D that Adam reaches from the sum, without autograd, in float32.

        m = b1 m + (1 - b1) g;    v = b2 v + (1 - b2) g^2
        D = D - rate / (1 - b1^k) * m / (sqrt(v) / sqrt(1 - b2^k) + eps)         at step k = 1, 2, ..., steps

    Args:
        taus: float32 [out, in] each, none of them zero.
        steps: of the descent.
        rate: most that one step moves an element, more or less.
        form: how the gradient is computed.
        arrays: the library that computes.
        kept: P of `solve`.

    Returns:
        float32 [out, in], an array of that library.
    """
    xp, (b1, b2) = arrays.xp, BETAS
    kept = None if kept is None else arrays.put(kept, "float32")
    loss = Interference.of([arrays.put(tau, "float32") for tau in taus], form, xp, kept)
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


class TaskVectors(Protocol):
    """The task vectors of one matrix, or of several of one shape; none is zero, and parts are formed when asked for."""

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""

    def __len__(self) -> int:
        """How many."""

    def part(self, index: int, rows: slice = ALL, columns: slice = ALL) -> Any:
        """A rectangle of one of them, float32 [..., rows, columns]."""


@dataclass(frozen=True)
class Held:
    """Task vectors that are there already."""

    taus: Sequence[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """See TaskVectors."""
        rows, columns = self.taus[0].shape[-2:]
        return rows, columns

    def __len__(self) -> int:
        return len(self.taus)

    def part(self, index: int, rows: slice = ALL, columns: slice = ALL) -> Any:
        """See TaskVectors."""
        return self.taus[index][..., rows, columns]


def solve(taus: TaskVectors, *, ridge: float, form: Form, arrays: Arrays, kept: Any = None) -> Any:
    """The M = S + D that minimises loss(M) + trace(M P M^T) + mu ||D||_F^2, mu = ridge * N / in, computed in float64.

        input:   M (A + P + mu I) = B + mu S                                            [in, in]
        stacked: D = -C (K + mu I)^-1 T,   K = T T^T,                                   [N * out, N * out]
                 C[i] = (S - tau[i]) T[i]^T = sum over j != i of sqrt(n[j]) K[j, i]     beside each other [out, N * out]

    The two are equal: S A - B = C T, and T (T^T T + mu I)^-1 = (T T^T + mu I)^-1 T. Both systems are positive definite
    and solved by Cholesky. Only the system and the right side are held whole: task vectors are taken by panels, rows of
    one agent in the input form, columns of all of them in the stacked form.

    Args:
        taus: of one matrix, or of several at a time where the library takes that.
        ridge: pull towards the sum; N / in is the mean eigenvalue of A.
        form: which of the two systems.
        arrays: the library that computes.
        kept: P, float64 [..., in, in], of the input form alone; overwritten.

    Returns:
        [..., out, in], an array of that library: float64, or float32 in the stacked form, which holds no more of it.
    """
    pull = ridge * len(taus) / taus.shape[1]
    return _from_outputs(taus, pull, arrays) if form == "stacked" else _from_inputs(taus, pull, arrays, kept)


def _from_inputs(taus: TaskVectors, pull: float, arrays: Arrays, kept: Any) -> Any:
    """The input form, agent by agent: A, and B + mu S by the cheaper of tau (tau^T tau) and (tau tau^T) tau."""
    rows, columns = taus.shape
    system, right = kept, None
    for i in range(len(taus)):
        own = _sum(arrays.gram(_held(taus, i, arrays, rows=panel)) for panel in arrays.panels(rows, columns))
        length = trace(own)
        own /= length
        by_rows = 3 * rows < 2 * columns
        outer = _outer(taus, i, arrays) / length if by_rows else None
        right = arrays.empty((*own.shape[:-2], rows, columns)) if right is None else right
        for panel in arrays.panels(columns, rows) if by_rows else arrays.panels(rows, columns):
            at = (..., slice(None), panel) if by_rows else (..., panel, slice(None))
            tau = _held(taus, i, arrays, *at[1:])
            part = outer @ tau if by_rows else arrays.times(tau, own)
            part += pull * tau
            if i:
                right[at] += part
            else:
                right[at] = part
        system = own if system is None else _added(system, own)
        del own, outer
    return arrays.solved(system, pull, right)


def _from_outputs(taus: TaskVectors, pull: float, arrays: Arrays) -> Any:
    """The stacked form: products of all task vectors, then columns of the result."""
    rows, columns = taus.shape
    count = len(taus)
    panels = arrays.panels(columns, count * rows)
    products = _sum(arrays.outer(_together(taus, panel, arrays)) for panel in panels)
    blocks = [slice(i * rows, (i + 1) * rows) for i in range(count)]
    lengths = [trace(products[..., block, block]) ** 0.5 for block in blocks]
    right = arrays.empty((*products.shape[:-2], rows, count * rows))
    for i, mine in enumerate(blocks):
        first, *others = [products[..., block, mine] for j, block in enumerate(blocks) if j != i]
        right[..., mine] = sum(others, start=first) / lengths[i]
    for block, length in zip(blocks, lengths, strict=True):
        products[..., block, :] /= length
        products[..., :, block] /= length
    shares = arrays.solved(products, pull, right)
    del products
    for block, length in zip(blocks, lengths, strict=True):
        shares[..., block] /= -length
    merged = arrays.empty((*shares.shape[:-2], rows, columns), "float32")
    for panel in panels:
        tall = _together(taus, panel, arrays)
        update = shares @ tall
        for block in blocks:
            update += tall[..., block, :]
        merged[..., panel] = arrays.put(update, "float32")
    return merged


def _held(taus: TaskVectors, index: int, arrays: Arrays, rows: slice = ALL, columns: slice = ALL) -> Any:
    return arrays.put(taus.part(index, rows, columns), "float64")


def _together(taus: TaskVectors, columns: slice, arrays: Arrays) -> Any:
    """Columns of all task vectors above each other, float64 [..., N * out, columns]."""
    return arrays.xp.concatenate([_held(taus, i, arrays, columns=columns) for i in range(len(taus))], -2)


def _outer(taus: TaskVectors, index: int, arrays: Arrays) -> Any:
    """Tau tau^T, [..., out, out]."""
    rows, columns = taus.shape
    return _sum(arrays.outer(_held(taus, index, arrays, columns=panel)) for panel in arrays.panels(columns, rows))


def _sum(parts: Iterable[Any]) -> Any:
    """Of arrays that nobody else holds, in their order; the first one is changed."""
    return reduce(_added, parts)


def _added(total: Any, part: Any) -> Any:
    total += part
    return total


def trace(system: Any) -> Any:
    """Of a matrix, or of each of several: [..., 1, 1]."""
    return system.diagonal(0, -2, -1).sum(-1)[..., None, None]


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


def solution_bytes(rows: int, columns: int, agents: int, form: Form, arrays: Arrays) -> int:
    """What `solve` holds of one matrix, its result included, and on a device base and agents besides."""
    side, whole = (agents * rows, 4) if form == "stacked" else (columns, 12)
    length, width = (columns, side) if form == "stacked" else (rows, columns)
    panel: int = max(panel.stop - panel.start for panel in arrays.panels(length, width)) * width
    right = 16 * rows * side if form == "stacked" else 0
    sent = 0 if arrays.device == "cpu" else 4 + 4 * (agents + 1)
    return (whole + sent) * rows * columns + right + 24 * side**2 + 32 * panel


def _gram_flop(rows: int, columns: int) -> float:
    """One agent's part of A and E."""
    return 2.0 * rows * columns**2 + min(2.0 * rows * columns**2, 4.0 * rows**2 * columns)


def _half_gram_flop(rows: int, columns: int) -> float:
    """One agent's part of A, of which half is computed, and of B."""
    return rows * columns**2 + min(2.0 * rows * columns**2, 3.0 * rows**2 * columns)


def cheaper(flop: dict[Form, float]) -> Form:
    """The form that takes less."""
    return "stacked" if flop["stacked"] < flop["input"] else "input"
