"""The loop of a map: who changed what, a formula, the cast, and what the cast did. Made once per formula."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from numba import types

from agentmerge.kernels.cpu.loops.compiled import Loop
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.signatures import COUNTS, DESTINATION, INTS, SCRATCH, SOURCES, settings_type
from agentmerge.kernels.cpu.loops.stages import changes, finish
from agentmerge.kernels.cpu.loops.vectors import LANES

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.kernels.arguments import Destination, Scratch, Sources
    from agentmerge.tensors import Array


def signature(settings: type[tuple[Any, ...]]) -> Any:
    """Of every loop of a map: sources, scratch, elements, settings, to, tally, broken."""
    return types.void(SOURCES, SCRATCH, types.int64, settings_type(settings), DESTINATION, COUNTS, INTS)


def merging(formula: Callable[..., Any], settings: type[tuple[Any, ...]]) -> Loop:
    """The loop of a formula.

    The template's code with the formula among its globals: numba's cache then finds it by its name, which a formula
    in a closure would hide, as jitted functions are pickled differently by every process.

    Args:
        formula: jitted; the merged vector of (sources, rows, at, i, base, own, settings): agent t's task vector of the
            elements [i, i + LANES) lies at the address rows[t] + at, `own` is the value of the last agent that changed
            each element.
        settings: the NamedTuple of them, with a threshold.
    """
    made = FunctionType(_template.__code__, {**_template.__globals__, "_formula": formula}, f"merge_{formula.__name__}")
    return Loop(made, signature(settings))


_formula: Any = None
"""In a loop's own globals, its formula."""


def _template(
    sources: Sources, scratch: Scratch, elements: int, settings: Any, to: Destination, tally: Array, broken: Array
) -> None:
    """Merge, round, store and observe.

    Args:
        sources: what is read.
        scratch: memory.
        elements: a multiple of LANES.
        settings: of the formula.
        to: where it goes.
        tally: int64 [4, agents], added to; see stages.py.
        broken: int64 [2], added to; see stages.py.
    """
    given, changed = sources.taus.size > 0, scratch.changed
    rows = sources.taus if given else scratch.rows
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        own, some, many = changes(sources, base, i, settings.threshold, scratch.rows, changed)
        merged = _formula(sources, rows, 4 * i if given else 0, i, base, own, settings)
        finish(base, own, merged, some, many, changed, i, to, tally, broken)
