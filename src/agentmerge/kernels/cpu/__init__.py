"""The backend for CPUs: plain calls; the loops that they lead to are numba's and imported when first called.

One pass over memory each. See kernels.Backend for what every function does.
"""

from __future__ import annotations

from importlib import import_module

from agentmerge.kernels.cpu.drop import drop, prune, select, trim, variances
from agentmerge.kernels.cpu.fold import (
    count,
    energies,
    integrity,
    magnitudes,
    overlap,
    powers,
    products,
    region_retention,
    retention,
    signs,
    squares,
)
from agentmerge.kernels.cpu.full import full
from agentmerge.kernels.cpu.lowrank import low_rank
from agentmerge.kernels.cpu.merge import loop_of, merge
from agentmerge.kernels.cpu.packing import count as count_marks
from agentmerge.kernels.cpu.packing import mark, places, put, take
from agentmerge.kernels.cpu.restore import restore
from agentmerge.kernels.cpu.sparse import gram, times

__all__ = [
    "count",
    "count_marks",
    "drop",
    "energies",
    "full",
    "gram",
    "integrity",
    "load",
    "low_rank",
    "magnitudes",
    "mark",
    "merge",
    "overlap",
    "places",
    "powers",
    "products",
    "prune",
    "put",
    "region_retention",
    "restore",
    "retention",
    "select",
    "signs",
    "squares",
    "take",
    "times",
    "trim",
    "variances",
]

_OTHERS = {
    "count": ("count", "count"),
    "full": ("full", "count"),
    "restore": ("restore", "restore"),
    **{name: ("drop", name) for name in ("drop", "trim", "draw", "prune")},
}
"""What is loaded by its own name: file and function."""


def load(*loops: str) -> None:
    """See Backend.load."""
    for name in loops:
        if name in _OTHERS:
            file, function = _OTHERS[name]
            getattr(import_module(f"agentmerge.kernels.cpu.loops.{file}"), function).load()
        else:
            loop_of(name).load()
