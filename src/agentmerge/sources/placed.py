"""Where a view puts a block that it computes: checked as every source checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import SourceError, Where, did_you_mean
from agentmerge.files.documents import abbreviated
from agentmerge.tensors import DTYPES, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def room_for(block: Block, specs: Mapping[str, TensorSpec], text: str, out: Array | None) -> Array:
    """The array that a block is read into: `out` itself, or a new one.

    Args:
        block: what is read.
        specs: the tensors of the source.
        text: what the user wrote for it.
        out: as given to `Weights.read`.

    Returns:
        [block.elements] in the dtype of `specs`.

    Raises:
        SourceError: no such tensor.
        ValueError: the block ends beyond the tensor, or `out` does not fit it.
    """
    name = block.tensor.name
    spec = specs.get(name)
    if spec is None:
        found, todo = f"{text}: no tensor {abbreviated(name)}", did_you_mean(name, specs).strip()
        raise SourceError(found, todo=todo, where=Where(source=text, tensor=name))
    dtype = DTYPES[spec.dtype]
    if not 0 <= block.start <= block.stop <= spec.elements:
        raise ValueError(f"{name}: elements [{block.start}, {block.stop}) of {spec.elements}")
    if out is None:
        return np.empty(block.elements, dtype)
    if out.dtype != dtype or out.shape != (block.elements,):
        raise ValueError(f"{name}: out is {out.dtype} {out.shape}, expected {dtype} ({block.elements},)")
    return out


def refuse_fp8(specs: Mapping[str, TensorSpec], path: Path) -> None:
    """Raise SourceError where changes would lie over codes whose scales only the base's own config explains.

    Args:
        specs: of what they lie over.
        path: of the changes.
    """
    coded = next((spec for spec in specs.values() if spec.dtype.startswith("F8_")), None)
    if coded is not None:
        raise SourceError(
            f"{path}: lies over a base in FP8 ({coded.name} is {coded.dtype})",
            expected="floats of 16 bits or more",
            todo="Give the base in bfloat16, as it was trained from, or the agent as a whole checkpoint.",
            where=Where(tensor=coded.name, path=str(path)),
        )
