"""How much task vectors of a matrix interfere, and the least of it, over numpy or torch arrays.

Task vectors tau[i] are [out, in], n[i] = ||tau[i]||_F^2, S is their sum, M = S + D the merged one:

    loss     = sum_i ||(M - tau[i]) tau[i]^T||_F^2 / n[i]
    gradient = 2 (M A - B) = 2 (D A + E)
    A = sum_i tau[i]^T tau[i] / n[i]                  [in, in], its trace is the number of agents
    B = sum_i tau[i] tau[i]^T tau[i] / n[i]           [out, in]
    E = S A - B = sum_i (S - tau[i]) tau[i]^T tau[i] / n[i]     so that nothing cancels, and one agent gives exactly 0

The *input* form holds A; the *stacked* form holds T, the tau[i] / sqrt(n[i]) above each other [N * out, in]: A = T^T T.
Of all methods, this is the only file that imports torch.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.tensors import Array

Form = Literal["input", "stacked"]
Precision = Literal["float32", "float64"]

BETAS, EPS = (0.9, 0.999), 1e-8
"""Adam's, as torch.optim.Adam has them."""


class Arrays:
    """numpy arrays, the library `xp` of everything below; torch's differ in where they lie."""

    xp: Any = np
    device = "cpu"

    def put(self, values: Array, precision: Precision) -> Any:
        """An array of this library with these numbers; it may share their memory."""
        return np.asarray(values, precision)

    def get(self, values: Any) -> Array:
        """Back to numpy, float32."""
        return np.asarray(values, np.float32)

    @contextmanager
    def precisely(self) -> Iterator[None]:
        """While products are computed: in the precision of their numbers."""
        yield


class TorchArrays(Arrays):
    """torch tensors on one device."""

    def __init__(self, device: str) -> None:
        import torch

        self.xp = torch
        self.device = device

    def put(self, values: Array, precision: Precision) -> Any:
        """A copy on the device."""
        return self.xp.tensor(values, dtype=getattr(self.xp, precision), device=self.device)

    def get(self, values: Any) -> Array:
        """Back to numpy, float32."""
        found: Array = values.to(dtype=self.xp.float32, device="cpu").numpy()
        return found

    @contextmanager
    def precisely(self) -> Iterator[None]:
        """Float32 products in float32, whatever the environment says of TF32; a setting of the whole process."""
        before = self.xp.get_float32_matmul_precision()
        self.xp.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            self.xp.set_float32_matmul_precision(before)


@cache
def cuda() -> TorchArrays | None:
    """Arrays on the first CUDA device, where torch is installed and finds one."""
    try:
        arrays = TorchArrays("cuda")
    except (ImportError, OSError):
        return None
    return arrays if arrays.xp.cuda.is_available() else None


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


def descend(taus: Sequence[Array], *, steps: int, rate: float, form: Form, arrays: Arrays) -> Array:
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
        float32 [out, in].
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
    return arrays.get(correction)


def solve(taus: Sequence[Array], *, ridge: float, form: Form, arrays: Arrays) -> Array:
    """The correction D that minimises loss(S + D) + mu ||D||_F^2, mu = ridge * trace(A) / in, in float64.

        input:   D (A + mu I) = -E                                                      [in, in]
        stacked: D = -C (T T^T + mu I)^-1 T,   C = [(S - tau[i]) T[i]^T] beside each other [out, N * out]

    The two are equal: E = C T, and T (T^T T + mu I)^-1 = (T T^T + mu I)^-1 T.

    Args:
        taus: float32 [out, in] each, none of them zero.
        ridge: pull towards the sum; trace(A) / in is the mean eigenvalue of A.
        form: which of the two systems.
        arrays: the library that computes.

    Returns:
        float32 [out, in].
    """
    xp, held = arrays.xp, [arrays.put(tau, "float64") for tau in taus]
    pull = ridge * len(held) / held[0].shape[1]
    if form == "input":
        loss = Interference.of(held, form, xp)
        return arrays.get(-_solved(loss.gram, pull, loss.slope, xp))
    units = xp.concatenate([tau / norm(tau) for tau in held])
    total, rows = sum(held[1:], start=held[0]), held[0].shape[0]
    products = [(total - tau) @ units[i * rows : (i + 1) * rows].T for i, tau in enumerate(held)]
    return arrays.get(-_solved(units @ units.T, pull, xp.concatenate(products, 1), xp) @ units)


def _solved(system: Any, pull: float, right: Any, xp: Any) -> Any:
    """X with X (system + pull I) = right, for a symmetric system; it is changed."""
    system.reshape(-1)[:: system.shape[0] + 1] += pull
    return xp.linalg.solve(system, right.T).T


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
        "input": agents * _gram_flop(rows, columns) + columns**3 / 1.5 + 2.0 * rows * columns**2,
        "stacked": 2.0 * stacked**2 * (columns + rows) + stacked**3 / 1.5 + 4.0 * rows * stacked * columns,
    }


def _gram_flop(rows: int, columns: int) -> float:
    """One agent's part of A and E."""
    return 2.0 * rows * columns**2 + min(2.0 * rows * columns**2, 4.0 * rows**2 * columns)


def cheaper(flop: dict[Form, float]) -> Form:
    """The form that takes less."""
    return "stacked" if flop["stacked"] < flop["input"] else "input"
