"""Plain rules: what the numbers of a full probe suggest, and why. Each takes the findings alone.

docs/reading-a-report.md lists them. None has seen a score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.analysis.facts import advice, densities, listed, model_pairs
from agentmerge.analysis.suspicions import adapter, hidden, narrow, right_base, twins, uneven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentmerge.analysis.models import Advice, Findings

SPARSE, DENSE = 0.6, 0.8
"""Densities up to which, and from which on."""
SURVIVES, LOST = 0.5, 0.1
"""Share of unique elements that a rescale should reach, and of changed ones that a mean may lose."""
SHARED, CONFLICT = 0.1, 0.35
"""Share of the changes that are shared, and of those whose signs differ."""
GRID = 0.1
"""Overlap beyond chance that is worth a word."""
KEPT = 0.85
"""Retention under RAM."""


def advise(found: Findings) -> list[Advice]:
    """Every rule that applies, in the order of RULES."""
    return [item for rule in RULES for item in rule(found)]


def training(found: Findings) -> Iterator[Advice]:
    """Sparse as after RL, or dense as after supervised training."""
    sparse = {name: density for name, density in densities(found).items() if 0 < density <= SPARSE}
    dense = {name: density for name, density in densities(found).items() if density >= DENSE}
    if sparse:
        yield advice(
            "training",
            list(sparse),
            f"Changed elements: {listed(sparse)}: sparse, as after RL (3.2% to 54.3% in the paper).",
            "Selecting by element, as RAM does, has something to select.",
        )
    if dense:
        yield advice(
            "training",
            list(dense),
            f"Changed elements: {listed(dense)}: dense, as after supervised training or a long run at a high learning",
            "rate. Little is unique then; compare with `ties`, or with `task_arithmetic` at a tuned scale.",
        )


def method(found: Findings) -> Iterator[Advice]:
    """Which method, by how much of each agent RAM is expected to keep."""
    kept = {row.agent: row.retention for row in found.dilution if row.method == "ram" and row.retention is not None}
    if len(found.agents) < 2 or not kept:
        return
    values = ", ".join(f"{name} {value:.2f}" for name, value in kept.items())
    if min(kept.values()) >= KEPT:
        yield advice(
            "method", [], f"RAM keeps most of each agent's change ({values}): `ram` or `ram_plus` as they are."
        )
        return
    yield advice(
        "method",
        [],
        f"RAM would keep only a part of each agent's change: {values}. In our trials merges at 1.0 to 1.2 scored best:",
        "use `ram_plus` with `--set rescale=auto`, or `calibrate`, with `--rounding stochastic`; `task_arithmetic` at",
        "scale 1 is the baseline to beat.",
    )


def storage(found: Findings) -> Iterator[Advice]:
    """The rescale of RAM+, or a mean, that rounding to nearest would undo."""
    rows = [row for row in found.rescale if row.dtype == found.dtype and row.rescale == 0.1]
    weak = {row.agent: row.at_most for row in rows if row.at_most is not None and row.at_most < SURVIVES}
    if weak:
        yield advice(
            "storage",
            list(weak),
            f"RAM+ at rescale 0.1, stored as {found.dtype} to nearest, differs from RAM on few of the unique elements",
            f"(at most {listed(weak)}). Use `--rounding stochastic` or `--dtype float32`.",
        )
    means = [row for row in found.lost if row.method == "task_arithmetic" and row.dtype == found.dtype]
    gone = {row.agent: row.changed_lost or 0.0 for row in means}
    if len(gone) > 1 and max(gone.values()) > LOST:
        yield advice(
            "storage",
            [],
            f"The mean of the agents (task arithmetic at 1 / {len(gone)}), stored as {found.dtype} to nearest, rounds",
            f"changes back to the base: {listed(gone, 0)} of the changed elements. The same remedy.",
        )


def conflict(found: Findings) -> Iterator[Advice]:
    """Shared elements that agents pull in opposite directions."""
    worst = {row.agent: row.conflict for row in found.totals if row.conflict is not None and row.conflict >= CONFLICT}
    if worst and sum(row.shared for row in found.modules) >= SHARED * sum(row.changed for row in found.modules):
        yield advice(
            "conflict",
            list(worst),
            f"In many shared elements some agents raise what others lower ({listed(worst, 0)}; independent changes of",
            "two agents give 50%). The mean cancels there: try `--set shared=elect`, or `--set shared_power=0.5`.",
        )


def grid(found: Findings) -> Iterator[Advice]:
    """Overlap beyond chance that is gone once the size of the weights is taken into account."""
    for pair in model_pairs(found):
        if pair.ratio is None or pair.ratio_within is None:
            continue
        if pair.ratio > 1 + GRID and pair.ratio_within < 1 + GRID / 2:
            yield advice(
                "grid",
                [pair.left, pair.right],
                f"They share {pair.ratio:.2f} times the elements that chance gives, but {pair.ratio_within:.2f} times",
                "among weights of one size in one module: they meet where the stored grid is fine, which is no sign of",
                "shared knowledge.",
            )


RULES: tuple[Callable[[Findings], Iterator[Advice]], ...] = (
    right_base,
    method,
    storage,
    conflict,
    grid,
    twins,
    narrow,
    adapter,
    training,
    hidden,
    uneven,
)
