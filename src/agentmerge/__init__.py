"""Merge RL-trained agents of one base into one checkpoint. The public surface on one screen; everything is lazy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__

if TYPE_CHECKING:
    from agentmerge.api import check, merge, probe, push, sweep, sweep_all
    from agentmerge.deltas.apply import apply
    from agentmerge.deltas.join import join
    from agentmerge.deltas.pack import pack
    from agentmerge.deltas.record import ApplyRecord, JoinRecord, PackRecord
    from agentmerge.engine.findings import CheckRecord
    from agentmerge.errors import MergeError
    from agentmerge.methods.base import MergeMethod
    from agentmerge.methods.registry import register
    from agentmerge.recipe import Recipe
    from agentmerge.record import MergeRecord, ProbeRecord

_HOMES = {
    "apply": "deltas.apply",
    "check": "api",
    "join": "deltas.join",
    "merge": "api",
    "pack": "deltas.pack",
    "probe": "api",
    "push": "api",
    "sweep": "api",
    "sweep_all": "api",
    "ApplyRecord": "deltas.record",
    "JoinRecord": "deltas.record",
    "PackRecord": "deltas.record",
    "CheckRecord": "engine.findings",
    "Recipe": "recipe",
    "MergeMethod": "methods.base",
    "register": "methods.registry",
    "MergeRecord": "record",
    "ProbeRecord": "record",
    "MergeError": "errors",
}

__all__ = [
    "ApplyRecord",
    "CheckRecord",
    "JoinRecord",
    "MergeError",
    "MergeMethod",
    "MergeRecord",
    "PackRecord",
    "ProbeRecord",
    "Recipe",
    "__version__",
    "apply",
    "check",
    "join",
    "merge",
    "pack",
    "probe",
    "push",
    "register",
    "sweep",
    "sweep_all",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import agentmerge` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'agentmerge' has no attribute {name!r}")
    return getattr(import_module(f"agentmerge.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
