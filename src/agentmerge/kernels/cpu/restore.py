"""An agent's numbers, the base's where they are that but for their dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.kernels.arguments import CODES, address, spans
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from agentmerge.tensors import Array


def restore(base: Array, read: Array, dtype: str, out: Array) -> None:
    """See Backend.restore."""
    from agentmerge.kernels.cpu.loops import restore as loops

    code = CODES[DTYPES[dtype]]
    for sources, elements, at in spans(base, (read,)):
        loops.restore(sources, elements, code, address(out) + out.itemsize * at)
