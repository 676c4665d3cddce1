"""methods/fisher.py: the importance-weighted mean of the task vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added
from agentmerge.kernels.cpu.loops.vectors import Lanes, fill_f32, load_f32, select
from agentmerge.kernels.formulas import Fisher

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array


@inlined
def fisher(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Fisher) -> Lanes:
    """Base + scale * mean; the base where no agent's importance is known."""
    total, divisor, important = fill_f32(0.0), fill_f32(0.0), fill_f32(0.0)
    for t in range(rows.size):
        importance = decode(sources.extra[t], sources.extra_codes[t], i)
        factor = (importance + settings.floor) * settings.coefficients[t]
        total += load_f32(rows[t] + at) * factor
        divisor += factor
        important = select(importance != 0.0, fill_f32(1.0), important)
    mean = total / select(divisor == 0.0, fill_f32(1.0), divisor)
    return added(base, select(important != 0.0, mean * settings.scale, fill_f32(0.0)))


merge = merging(fisher, Fisher)
