"""methods/task_arithmetic.py: the weighted sum of the task vectors, times one number and divided by another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added
from agentmerge.kernels.cpu.loops.vectors import fill_f32, load_f32
from agentmerge.kernels.formulas import Linear

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.kernels.cpu.loops.vectors import Lanes
    from agentmerge.tensors import Array


@inlined
def linear(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Linear) -> Lanes:
    """Base + sum of weight * tau * scale / divisor, the sum in the agents' order."""
    total = fill_f32(0.0)
    for t in range(rows.size):
        total += load_f32(rows[t] + at) * settings.weight[t]
    update = total * settings.scale
    if settings.divisor != 1:
        update = update / settings.divisor
    return added(base, update)


merge = merging(linear, Linear)
