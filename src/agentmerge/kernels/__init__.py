"""The compiled twins of what is slow, and the one place that decides whether they fit. Imports no numba.

A *kernel* is a compiled loop by name and its arguments; a *backend* is a folder of loops for one kind of processor.
Every kernel equals its numpy definition bit for bit, so where none fits the definition runs and nothing else changes.
README.md says why and how.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from agentmerge.kernels import cpu
from agentmerge.kernels.arguments import CODES
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentmerge.kernels.arguments import Sampled
    from agentmerge.kernels.formulas import Shared
    from agentmerge.tensors import Array, Cast, Stack

MOST_AGENTS = 64


def choose(stack: Stack, *dtypes: str) -> Backend | None:
    """The backend that takes this stack; None where only the definitions do.

    Loops work on BF16, F16 and F32 in any mix, contiguous, of 1 to 64 agents. Every caller asks here, by the name
    `kernels.choose`, so replacing it by a function that returns None switches every kernel off.

    Args:
        stack: what would be read; its `extra` arrays count too.
        dtypes: what would be written, safetensors spellings.
    """
    arrays = (stack.base, *stack.agents, *stack.stored, *(array for beside in stack.extra.values() for array in beside))
    fits = (
        1 <= len(stack.agents) <= MOST_AGENTS
        and all(array.dtype in CODES and array.flags.c_contiguous for array in arrays)
        and all(DTYPES.get(dtype) in CODES for dtype in dtypes)
    )
    return cast("Backend", cpu) if fits and compiling() else None


def compiling() -> bool:
    """Whether numba may compile: with NUMBA_DISABLE_JIT=1 in the environment the definitions run instead."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The compiled loop of a merge, and what it is called with."""

    loop: str
    """The name of the formula, a file of the backend's `loops/formulas`."""
    settings: Any
    """Its settings, the NamedTuple of the same name in formulas.py."""
    stack: Stack
    """What is merged; the rounding is counted of its agents, whatever its task vectors."""
    extra: tuple[Array, ...] = ()
    """What else the formula reads, [n] each: the importance of every agent, or the merge that it is given, float32."""


class Backend(Protocol):
    """What a folder of kernels offers; every answer equals the definition that its docstring names, bit for bit."""

    def load(self, *loops: str) -> None:
        """Compile these loops, or load them from a cache; the others follow when called.

        Args:
            loops: names of formulas, or "count" (what every fold runs), "drop", "trim", "draw", "prune",
                "full", "restore".
        """

    def merge(self, kernel: Kernel, cast: Cast, out: Array) -> tuple[Array, Array, Array, Array, int, int]:
        """A method's merge, Cast.apply and survey.observe_rounding in one pass; the result goes to `out`.

        Args:
            kernel: the loop and its arguments.
            cast: to the output dtype.
            out: [n] in the output dtype, written.

        Returns:
            changed, lost, unique, survived int64 [agents]; overflow, non_finite: the fields of RoundingCounts.
        """

    def restore(self, base: Array, read: Array, dtype: str, out: Array) -> None:
        """alike.storage.restored: an agent's numbers, the base's where they are that but for their dtype.

        Args:
            base: [n].
            read: [n], the agent's.
            dtype: that the agent stores them in, BF16, F16 or F32.
            out: float32 [n], written, up to the next multiple of `arguments.WIDTH` elements.
        """

    def low_rank(self, left: Array, right: Array, scale: float) -> Array:
        """sources.lowrank.product: scale * left right, summed in the order of the rank, float32 [rows, columns].

        Args:
            left: float32 [rows, rank], rank at least 1.
            right: float32 [rank, columns].
            scale: rounded to float32.
        """

    def mark(self, base: Array, agent: Array) -> Array:
        """sources.bits.mark: which elements of two arrays differ in bits, uint64 [ceil(n / 64)]."""

    def count_marks(self, marks: Array, words: int) -> Array:
        """sources.bits.count: how many marks each so many words have, int64 [ceil(marks / words)]."""

    def take(self, values: Array, marks: Array, count: int) -> Array:
        """sources.bits.take: the marked values, [count]."""

    def put(self, values: Array, marks: Array, old: Array, out: Array) -> None:
        """sources.bits.put: values, of which there is one more than marks, in the marked places, else `old`."""

    def places(self, marks: Array, start: int, count: int) -> Array:
        """sources.bits.places: the flat places of the marks, int32 [count]."""

    def drop(self, stack: Stack, keys: Sequence[tuple[int, int]], densities: Sequence[float]) -> Array:
        """methods.dare.dropped: task vectors dropped and rescaled, float32 [agents, n].

        Args:
            stack: whose task vectors.
            keys: Philox key of every agent's draws.
            densities: kept fraction of every agent's, (0, 1].
        """

    def trim(self, stack: Stack, low: Array, high: Array, factor: Array) -> Array:
        """methods.trim.trimmed: task vectors within bounds, times a factor, float32 [agents, n].

        Args:
            stack: whose task vectors.
            low: float32 [agents], the smallest magnitude that stays.
            high: float32 [agents], the largest one.
            factor: float32 [agents].
        """

    def variances(self, stack: Stack) -> Array:
        """methods.sce.variance, float32 [n]."""

    def select(self, stack: Stack, limit: float) -> Array:
        """methods.sce.selected: task vectors where the variance is at least `limit`, float32 [agents, n]."""

    def prune(
        self,
        stack: Stack,
        columns: int,
        keys: Sequence[tuple[int, int]],
        probability: Sequence[Array],
        divisor: Sequence[Array],
    ) -> Array:
        """methods.della.pruned: task vectors drawn by the ranks in their rows, float32 [agents, n].

        Args:
            stack: base and agents, whole rows.
            columns: elements of a row.
            keys: Philox key of each agent's draws.
            probability: of each agent, float64 [columns], by rank from the smallest magnitude on, (0, 1].
            divisor: of each agent, float32 [columns], by rank.
        """

    def count(self, stack: Stack, threshold: float, key: int) -> tuple[Array, Array, Array, Array, Array]:
        """survey.Overlap of the agents and survey.Integrity in one pass.

        Args:
            stack: base and agents.
            threshold: of a change.
            key: 32 bits, of the tensor's fingerprint.

        Returns:
            what `overlap` returns, then what `integrity` returns.
        """

    def overlap(self, stack: Stack, threshold: float) -> tuple[Array, Array]:
        """survey.Overlap alone: exactly int64 [agents, agents], different int64 [agents]."""

    def integrity(self, stack: Stack, key: int) -> tuple[Array, Array, Array]:
        """survey.Integrity alone: nan and inf int64 [1 + agents], fingerprint uint64 [1 + agents]; see `count`."""

    def gram(self, matrix: Array) -> Array:
        """The lower triangle of methods.sparse.gram, 0 above: float64 [columns, columns]."""

    def times(self, matrix: Array, right: Array) -> Array:
        """methods.sparse.times: float64 [rows, n]."""

    def magnitudes(self, stack: Stack, bins: Sequence[int] | None = None) -> Array:
        """survey.MagnitudeHigh, or MagnitudeLow within each agent's bin: counts int64 [agents, 2^16 or 2^15]."""

    def signs(self, stack: Stack, weight: Array, limit: Array) -> tuple[int, int]:
        """methods.ties.ElectedSigns: how many elements elected + and how many -; an empty limit trims nothing."""

    def squares(self, arrays: Sequence[Array]) -> Array:
        """methods.fisher.ImportanceNorm: sums of squares over leaves, float64 [leaves, arrays]."""

    def products(self, stack: Stack) -> Array:
        """survey.Products: sums over leaves, float64 [leaves, agents * (agents + 1) / 2]."""

    def powers(self, stack: Stack, power: int) -> Array:
        """survey.Powers: sums over leaves, float64 [leaves, agents]."""

    def retention(self, stack: Stack, merged: Array) -> Array:
        """survey.retention_sums of `merged` [n], any stored dtype: float64 [leaves, 2 * agents]."""

    def region_retention(self, stack: Stack, stored: Array, threshold: float) -> Array:
        """survey.RegionRetention of the agents' own task vectors: float64 [leaves, 4 * agents]."""

    def energies(self, stack: Stack, threshold: float, shared: Shared, importance: Sequence[Array] = ()) -> Array:
        """methods.energies.Energies: float64 [leaves, 3 * agents]."""

    def full(
        self,
        stack: Stack,
        threshold: float,
        multipliers: Sequence[float],
        pairs: Sequence[tuple[int, int]],
        sampled: Sampled,
    ) -> tuple[dict[str, Array], Array] | None:
        """survey.full.Profile of the agents' own task vectors; None with agents of another dtype, or more than 8.

        Args:
            stack: base and agents.
            threshold: of a change.
            multipliers: of a unique change.
            pairs: of agents.
            sampled: which leaves are counted.

        Returns:
            the counts of ProfileCounts by name, and its energies, float64 [leaves, 3 agents + 3 pairs].
        """
