"""FP8 checkpoints read as bfloat16. Knows no agents.

    weight[r, c] = bfloat16(float32(stored[r, c]) * scale of its block, row or tensor)

The layouts: DeepSeek's and transformers' fine-grained FP8 (X.weight_scale_inv, one factor per block of 128 x 128; in
spite of its name it multiplies), compressed-tensors' and ModelOpt's (X.weight_scale: one per tensor, per row, per group
of columns or per block). They are rounded to bfloat16, as the published conversions do: an agent trained from such a
conversion then differs from its base only where training changed it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.alike.packed import DEQUANTISE, SCALES, quantisation, refuse_packed
from agentmerge.alike.view import View
from agentmerge.errors import SourceError
from agentmerge.tensors import DTYPES, LEAF, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.files.positional import Span
    from agentmerge.sources.folder import Opened

DROPPED = (".input_scale", ".input_scale_ub", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale")
"""Activation and cache scales, which a bfloat16 model has no use for."""
STEP = 32 * LEAF  # elements dequantised at a time


def dequantised(checkpoint: Opened, config: Mapping[str, Any]) -> Opened:
    """The checkpoint itself, or a view of its FP8 weights as bfloat16 without their scales.

    Args:
        checkpoint: as opened.
        config: its config.json.

    Raises:
        SourceError: another quantisation, a weight without a scale, or a scale of no known shape.
    """
    refuse_packed(checkpoint, config)
    weights = {name: spec for name, spec in checkpoint.specs.items() if spec.dtype.startswith("F8_")}
    if not weights:
        return checkpoint
    scales = {name: _scale_of(checkpoint, name) for name in weights}
    left_out = {*scales.values(), *(name for name in checkpoint.specs if name.endswith(DROPPED))}
    block = block_size(config, checkpoint.source)
    grids = {name: _grid(checkpoint, name, scale, block) for name, scale in scales.items()}
    specs = {
        name: TensorSpec(name, "BF16", spec.shape) if name in weights else spec
        for name, spec in checkpoint.specs.items()
        if name not in left_out
    }
    return Dequantised(checkpoint, specs, scales, grids)


class Dequantised(View):
    """FP8 weights as bfloat16; the scales are read with each block."""

    def __init__(
        self,
        inner: Opened,
        specs: Mapping[str, TensorSpec],
        scales: Mapping[str, str],
        grids: Mapping[str, tuple[int, int, int, int]],
    ) -> None:
        """See the class.

        Args:
            inner: the stored checkpoint.
            specs: the tensors of the view.
            scales: weight to scale tensor.
            grids: weight to (rows, columns of a matrix, rows and columns that share a factor).
        """
        super().__init__(inner, specs, (f"{inner.source}: {len(scales)} FP8 tensors are read as bfloat16",))
        self._scales, self._grids = scales, grids

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Checkpoint.read."""
        name = block.tensor.name
        if name not in self._scales:
            return self._inner.read(block, out)
        out = np.empty(block.elements, DTYPES["BF16"]) if out is None else out
        spec = self._inner.specs[name]
        for start in range(block.start, block.stop, STEP):
            part = Block(spec, start, min(start + STEP, block.stop))
            values = self._inner.read(part).astype(np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                values *= self._factors(name, part)
                out[start - block.start : part.stop - block.start] = values.astype(out.dtype)
        return out

    def span(self, block: Block) -> Span | None:
        """See Opened.span."""
        return None if block.tensor.name in self._scales else self._inner.span(block)

    def expect(self, block: Block) -> None:
        """See View.expect."""
        self._inner.expect(block)

    def _factors(self, name: str, part: Block) -> Array:
        """The scale of each element of a block, float32 [n]."""
        rows, columns, height, width = self._grids[name]
        scale = self._inner.specs[self._scales[name]]
        if scale.elements == 1:
            return self._inner.read(Block(scale, 0, 1)).astype(np.float32)
        across, down = -(-columns // width), -(-rows // height)
        first, last = part.start // columns, -(-part.stop // columns)
        index = np.arange(first, last)
        of_row = index // rows * down + index % rows // height  # a stack has its matrices' factors one after another
        low, high = int(of_row[0]), int(of_row[-1]) + 1
        stored = self._inner.read(Block(scale, low * across, high * across)).astype(np.float32)
        wide = np.repeat(stored.reshape(-1, across), width, axis=1)[:, :columns]
        flat: Array = wide[of_row - low].reshape(-1)
        return flat[part.start - first * columns : part.stop - first * columns]


def block_size(config: Mapping[str, Any], source: str) -> tuple[int, int]:
    """Rows and columns that share a factor by the config; DeepSeek's 128 x 128 where it names none."""
    section = quantisation(config)
    found: Any = section.get("weight_block_size")
    groups = section.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("block_structure"):
            found = found or weights["block_structure"]
        elif isinstance(weights, dict) and weights.get("group_size"):
            found = found or [1, weights["group_size"]]
    if found is None:
        return 128, 128
    if isinstance(found, list) and len(found) == 2 and all(type(n) is int and n > 0 for n in found):
        return found[0], found[1]
    raise SourceError(f"{source}: config.json: its FP8 block size is {found!r}, expected [rows, columns]. {DEQUANTISE}")


def _grid(checkpoint: Opened, name: str, scale: str, block: tuple[int, int]) -> tuple[int, int, int, int]:
    """Rows, columns, and how many of each share a factor."""
    shape, found = checkpoint.specs[name].shape, checkpoint.specs[scale].shape
    if prod(found) == 1 and shape:
        return prod(shape[:-1]), shape[-1], prod(shape[:-1]), shape[-1]
    wanted: tuple[int, ...] = ()
    if len(shape) >= 2:
        stack, (rows, columns) = shape[:-2], shape[-2:]
        wanted = (*stack, -(-rows // block[0]), -(-columns // block[1]))
        if found == wanted:
            return rows, columns, *block
        if found in (shape[:-1], (*shape[:-1], 1)):
            return rows, columns, 1, columns
    raise SourceError(
        f"{checkpoint.source}: {scale} has shape {list(found)}, expected one number, one per row or {list(wanted)} for "
        f"{name} of shape {list(shape)} in blocks of {block[0]} x {block[1]}. {DEQUANTISE}"
    )


def _scale_of(checkpoint: Opened, name: str) -> str:
    for suffix in SCALES:
        if name + suffix in checkpoint.specs:
            scale = checkpoint.specs[name + suffix]
            if scale.dtype not in ("F32", "F16", "BF16", "F64"):
                raise SourceError(
                    f"{checkpoint.source}: {scale.name} is {scale.dtype}, expected a scale in F32, BF16 or F16. "
                    f"{DEQUANTISE}"
                )
            return name + suffix
    raise SourceError(
        f"{checkpoint.source}: {name} is {checkpoint.specs[name].dtype} without a scale tensor, expected "
        f"{name}_scale_inv or {name}_scale beside it. {DEQUANTISE}"
    )
