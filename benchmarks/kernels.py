"""Speed of the CPU kernels against a plain memory copy of the same bytes: python benchmarks/kernels.py [elements].

Every fold and every map of every method, on one stack per thread that no cache holds.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from agentmerge.kernels import cpu
from agentmerge.methods.base import Context, before_merging
from agentmerge.methods.dare import Dropped
from agentmerge.methods.kernel import merge_by_kernels
from agentmerge.methods.registry import resolve_method
from agentmerge.survey.full.question import Profile
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.observe import observe
from agentmerge.survey.overlap import Overlap
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import DTYPES, Block, Cast, Stack, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.survey.statistic import Statistic

DENSITIES = {"tool": 0.032, "code": 0.462, "memory": 0.543}
"""Changed fractions of the paper's three agents."""
ROUNDS = 15
THREADS = 2
METHODS: dict[str, Any] = {
    "ram": {"name": "ram"},
    "ram_plus": {"name": "ram_plus"},
    "ram_plus sum": {"name": "ram_plus", "shared": "sum"},
    "ram_plus elect": {"name": "ram_plus", "shared": "elect"},
    "ram_plus importance": {"name": "ram_plus", "shared": "importance"},
    "ram_plus auto": {"name": "ram_plus", "rescale": "auto"},
    "task_arithmetic": {"name": "task_arithmetic"},
    "linear": {"name": "linear"},
    "ties": {"name": "ties"},
    "fisher": {"name": "fisher", "normalize": True},
    "region": {"name": "region", "agent": "code"},
    "dare task_arithmetic": {"name": "dare"},
    "dare ties": {"name": "dare", "then": {"name": "ties", "density": 1}},
    "dare ram_plus": {"name": "dare", "then": "ram_plus"},
    "calibrate ram": {"name": "calibrate", "then": "ram"},
}
CASTS = {"": Cast("BF16"), ", stochastic": Cast("BF16", "stochastic"), ", float32": Cast("F32")}
"""Of ram_plus; the other methods are stored as bfloat16, to nearest."""


@dataclass(frozen=True)
class Work:
    """Something to time."""

    name: str
    run: Callable[[int], object]
    """Given the number of the thread."""
    read_and_written: float
    """Bytes per element."""


def stack(elements: int, seed: int) -> Stack:
    """A bfloat16 base like a trained weight, agents that moved some elements by 1 to 3 steps, float32 importance."""
    random = np.random.default_rng(seed)
    base = (random.standard_normal(elements, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    agents = []
    for _, density in sorted(DENSITIES.items()):
        moved = random.random(elements, np.float32) < density
        steps = random.integers(1, 4, elements).astype(np.uint16)
        agents.append((base.view(np.uint16) + np.where(moved, steps, 0).astype(np.uint16)).view(base.dtype))
    importance = tuple(np.square(random.standard_normal(elements, np.float32)) for _ in agents)
    block = Block(TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (elements,)), 0, elements)
    return Stack(block, base, tuple(agents), tuple(sorted(DENSITIES)), (), {"importance": importance})


def works(stacks: Sequence[Stack]) -> list[Work]:
    """The copy, what every fold carries, then each method's own folds and its map."""
    copies = [[array.copy() for array in (one.base, *one.agents)] for one in stacks]
    outs = {dtype: [np.empty(one.base.size, DTYPES[dtype]) for one in stacks] for dtype in ("BF16", "F32")}

    def copy(i: int) -> None:
        for source, target in zip((stacks[i].base, *stacks[i].agents), copies[i], strict=True):
            np.copyto(target, source)

    def fold(name: str, *statistics: Statistic[Any]) -> Work:
        read = 4 * len(DENSITIES) if "ImportanceNorm" in name else 2 + 2 * len(DENSITIES)
        return Work(name, lambda i: observe(statistics, stacks[i]), read)

    read = 2 + 2 * len(DENSITIES)
    found = [Work("memory copy", copy, 2 * read), fold("Integrity", Integrity()), fold("Overlap", Overlap())]
    found.append(fold("Overlap and Integrity", Overlap(), Integrity()))
    found.append(fold("Profile (full probe)", Profile()))
    for title, config in METHODS.items():
        method = resolve_method(config).bind(Context(0, dict.fromkeys(DENSITIES, 1.0)))
        survey, tensor = Survey(), stacks[0].block.tensor.name
        while asked := before_merging(method.ask(survey)):
            for statistic in asked:
                if not isinstance(statistic, Overlap):
                    found.append(fold(f"  {title}: {_name(statistic)}", statistic))
                survey.add(statistic, tensor, observe((statistic,), stacks[0])[statistic])
        for suffix, cast in CASTS.items() if title == "ram_plus" else [("", Cast("BF16"))]:
            extra = 4 * len(DENSITIES) if method.reads else 0

            def merge(i: int, method: Any = method, survey: Survey = survey, cast: Cast = cast) -> None:
                if merge_by_kernels(method, stacks[i], survey, cast, outs[cast.dtype][i]) is None:
                    raise AssertionError(f"{method!r} has no kernel")

            found.append(Work(title + suffix, merge, read + extra + DTYPES[cast.dtype].itemsize))
    return found


def _name(statistic: Any) -> str:
    return type(statistic.inner if isinstance(statistic, Dropped) else statistic).__name__


def seconds(works: Sequence[Work]) -> dict[tuple[str, int], float]:
    """The best wall time of each work, all its threads at once; rounds take turns, so that noise hits all alike."""
    best: dict[tuple[str, int], float] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            for work in works:
                for threads in (1, THREADS):
                    begin = perf_counter()
                    list(pool.map(work.run, range(threads)))
                    taken = perf_counter() - begin
                    best[work.name, threads] = min(best.get((work.name, threads), taken), taken)
    return best


def main() -> None:
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 22
    begin = perf_counter()
    cpu.load("count", "ram", "given")
    print(f"import and compile, or load, what every merge runs: {perf_counter() - begin:.2f} s")
    timed = works([stack(elements, seed) for seed in range(THREADS)])
    best = seconds(timed)
    print(f"bfloat16 base and 3 agents, {elements} elements a thread; Gelement/s, GB/s read and written")
    print(f"{'':44}{'1 thread':>16}{f'{THREADS} threads':>16}{'of copy':>9}")
    fastest = THREADS * elements / best[timed[0].name, THREADS] * timed[0].read_and_written
    for work in timed:
        line, rate = f"{work.name:44}", 0.0
        for threads in (1, THREADS):
            rate = threads * elements / best[work.name, threads]
            line += f"{rate / 1e9:9.2f}{rate * work.read_and_written / 1e9:7.1f}"
        print(f"{line}{rate * work.read_and_written / fastest:9.2f}")


if __name__ == "__main__":
    main()
