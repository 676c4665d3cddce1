"""Speed of the CPU kernels against a plain memory copy of the same bytes: python benchmarks/kernels.py [elements]."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from agentmerge.kernels import cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.tensors import Array

DENSITIES = (0.032, 0.462, 0.543)
"""Changed fractions of the paper's three agents."""
ROUNDS = 25
THREADS = 2


def checkpoints(elements: int, seed: int) -> list[Array]:
    """A bfloat16 base like a trained weight, and three agents that moved some elements by 1 to 3 steps."""
    random = np.random.default_rng(seed)
    base = (random.standard_normal(elements, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    agents = []
    for density in DENSITIES:
        moved = random.random(elements, np.float32) < density
        steps = random.integers(1, 4, elements).astype(np.uint16)
        agents.append((base.view(np.uint16) + np.where(moved, steps, 0).astype(np.uint16)).view(base.dtype))
    return [base, *agents]


def seconds(works: dict[tuple[str, int], Callable[[int], object]]) -> dict[tuple[str, int], float]:
    """The best wall time of each work, all its threads at once; rounds take turns, so that noise hits all alike."""
    best = dict.fromkeys(works, float("inf"))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            for (name, threads), work in works.items():
                begin = perf_counter()
                list(pool.map(work, range(threads)))
                best[name, threads] = min(best[name, threads], perf_counter() - begin)
    return best


def main() -> None:
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 22
    begin = perf_counter()
    cpu.warm_up()
    print(f"import and compile, or load: {perf_counter() - begin:.2f} s")
    data = [checkpoints(elements, seed) for seed in range(THREADS)]
    copies = [[array.copy() for array in arrays] for arrays in data]
    wide = [np.empty(elements, np.float32) for _ in data]
    scale, weight = np.array([1.2, 1.1, 1.15], np.float32), np.ones(3, np.float32)

    def copy(i: int) -> None:
        for source, target in zip(data[i], copies[i], strict=True):
            np.copyto(target, source)

    def ram(out: list[Array], scales: Array, draw: tuple[int, int] | None) -> Callable[[int], object]:
        return lambda i: cpu.ram(data[i][0], data[i][1:], 1e-5, scales, weight, out[i], draw, 0)

    stored = [copied[0] for copied in copies]
    works: dict[str, tuple[Callable[[int], object], int]] = {
        "memory copy of base and agents": (copy, 16),
        "integrity": (lambda i: cpu.integrity(data[i][0], data[i][1:], 7, 0), 8),
        "count": (lambda i: cpu.count(data[i][0], data[i][1:], 1e-5, 7, 0), 8),
        "ram, nearest bfloat16": (ram(stored, scale, None), 10),
        "ram, nearest bfloat16, scale 1": (ram(stored, weight, None), 10),
        "ram, stochastic bfloat16": (ram(stored, scale, (1, 2)), 10),
        "ram, float32": (ram(wide, scale, None), 12),
    }
    print(f"bfloat16 base and 3 agents, {elements} elements a thread; GB/s counts bytes read and written")
    best = seconds({(name, threads): work for name, (work, _) in works.items() for threads in (1, THREADS)})
    for (name, threads), taken in best.items():
        rate = threads * elements / taken / 1e9
        print(f"{name:32} {threads} threads {rate:6.2f} Gelement/s {rate * works[name][1]:6.1f} GB/s")


if __name__ == "__main__":
    main()
