"""engine/onto.py: what a merge changed of the base, added to another checkpoint.

It has a loop of its own, as what is stored is compared with that checkpoint, and who changed what with the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.cpu.loops.compiled import compiled
from agentmerge.kernels.cpu.loops.floats import decode
from agentmerge.kernels.cpu.loops.merge import signature
from agentmerge.kernels.cpu.loops.stages import added, changes, finish
from agentmerge.kernels.cpu.loops.vectors import LANES
from agentmerge.kernels.formulas import Onto

if TYPE_CHECKING:
    from agentmerge.kernels.arguments import Destination, Scratch, Sources
    from agentmerge.tensors import Array


@compiled(signature(Onto))
def merge(
    sources: Sources, scratch: Scratch, elements: int, settings: Onto, to: Destination, tally: Array, broken: Array
) -> None:
    """See the template in merge.py."""
    changed = scratch.changed
    for i in range(0, elements, LANES):
        base = decode(sources.addresses[0], sources.codes[0], i)
        own, some, many = changes(sources, base, i, settings.threshold, scratch.rows, changed)
        onto = decode(sources.extra[1], sources.extra_codes[1], i)
        merged = added(onto, decode(sources.extra[0], sources.extra_codes[0], i) - base)
        finish(onto, onto + (own - base), merged, some, many, changed, i, to, tally, broken)
