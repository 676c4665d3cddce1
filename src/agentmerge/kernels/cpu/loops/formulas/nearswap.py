"""methods/nearswap.py: one agent's changes, each cut to a largest size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.kernels.cpu.loops.compiled import inlined
from agentmerge.kernels.cpu.loops.merge import merging
from agentmerge.kernels.cpu.loops.stages import added
from agentmerge.kernels.cpu.loops.vectors import Lanes, fill_f32, load_f32, magnitude, select
from agentmerge.kernels.formulas import Nearswap

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Sources
    from agentmerge.tensors import Array

_NEAR = np.float32(1e-6)


@inlined
def nearswap(sources: Sources, rows: Array, at: int, i: int, base: Lanes, own: Lanes, settings: Nearswap) -> Lanes:
    """Base + weight * min(t / max(|tau|, 1e-6), 1) * tau."""
    tau = load_f32(rows[0] + at)
    size = magnitude(tau)
    factor = fill_f32(settings.t) / select(size > _NEAR, size, fill_f32(_NEAR))
    near = select(fill_f32(1.0) > factor, factor * tau, tau)
    return added(base, near * settings.weight)


merge = merging(nearswap, Nearswap)
