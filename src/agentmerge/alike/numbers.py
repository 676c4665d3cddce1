"""Weights in other number formats: FP8 is read as bfloat16, packed integers are refused.

    weight[r, c] = bfloat16(float32(stored[r, c]) * scale of its block, row or tensor)

The layouts: DeepSeek's and transformers' fine-grained FP8 (X.weight_scale_inv, one factor per block of 128 x 128; in
spite of its name it multiplies), compressed-tensors' and ModelOpt's (X.weight_scale: one per tensor, per row, per group
of columns or per block). They are rounded to bfloat16, as the published conversions do: an agent trained from such a
conversion then differs from its base only where training changed it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.alike.packed import SCALES, SECTIONS, packed_error, quantisation, refuse_packed
from agentmerge.errors import Note
from agentmerge.sources.source import Stored
from agentmerge.tensors import DTYPES, LEAF, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Extents, Source, Weights

DROPPED = (".input_scale", ".input_scale_ub", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale")
"""Activation and cache scales, which a bfloat16 model has no use for."""
STEP = 32 * LEAF  # elements dequantised at a time


def plain_numbers(family: Family) -> Family:
    """Every source in numbers that can be added; the output is never quantised."""
    stored, configs, reads = family.base, family.configs, family.reads
    base = dequantise(stored, configs["base"])
    family, agents = family.each(lambda name, agent: dequantise(agent, configs[name], lambda t: reads(t, name)))
    family = replace(family, base=base, agents=agents)
    if not quantisation(configs["base"]):
        return family
    note = (
        "the base is FP8: the output is bfloat16 (or output.dtype), without scales and quantization_config"
        if base is not stored
        else "the base has plain weights and a quantization_config: the output is without the latter"
    )
    family = family.changed(**dict.fromkeys(SECTIONS))
    return family.noted(Note(note, where=stored.where))


def dequantise(source: Source, config: Mapping[str, Any], reads: Callable[[str], bool] = lambda name: True) -> Source:
    """The source itself, or as seen with its FP8 weights as bfloat16 and without their scales.

    Args:
        source: as opened.
        config: its config.json.
        reads: whether the recipe has a tensor of it read.

    Raises:
        SourceError: another quantisation, a weight without a scale, or a scale of no known shape.
    """
    refuse_packed(source, config, reads)
    weights = {name: spec for name, spec in source.specs.items() if spec.dtype.startswith("F8_")}
    if not weights:
        return source
    scales = {name: _scale_of(source, name) for name in weights}
    left_out = {*scales.values(), *(name for name in source.specs if name.endswith(DROPPED))}
    block = block_size(source, config)
    grids = {name: _grid(source, name, scale, block) for name, scale in scales.items()}
    specs = {
        name: TensorSpec(name, "BF16", spec.shape) if name in weights else spec
        for name, spec in source.specs.items()
        if name not in left_out
    }
    note = f"{source.text}: {len(scales)} FP8 tensors are read as bfloat16"
    return source.seen_as(Fp8View(source.weights, specs, scales, grids), note)


class Fp8View:
    """FP8 weights as bfloat16; the scales are read with each block. A Weights."""

    def __init__(
        self,
        inner: Weights,
        specs: Mapping[str, TensorSpec],
        scales: Mapping[str, str],
        grids: Mapping[str, tuple[int, int, int, int]],
    ) -> None:
        """See the class.

        Args:
            inner: as stored.
            specs: the tensors of the view.
            scales: weight to scale tensor.
            grids: weight to (rows, columns of a matrix, rows and columns that share a factor).
        """
        self._inner = inner
        self.specs = specs
        self._scales, self._grids = scales, grids

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Weights.read."""
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

    def extents(self, block: Block) -> Extents:
        """See Weights.extents."""
        found = self._inner.extents(block)
        return replace(found, verbatim=False) if block.tensor.name in self._scales else found

    def stored(self, name: str) -> tuple[Stored, ...]:
        """See Weights.stored."""
        if name not in self._scales:
            return self._inner.stored(name)
        spec = self._inner.specs[name]
        return (Stored(spec.dtype, spec.elements, lambda low, high: self._factors(name, Block(spec, low, high))),)

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


def block_size(source: Source, config: Mapping[str, Any]) -> tuple[int, int]:
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
    raise packed_error(source, "", f"config.json: its FP8 block size is {found!r}", "[rows, columns]")


def _grid(source: Source, name: str, scale: str, block: tuple[int, int]) -> tuple[int, int, int, int]:
    """Rows, columns, and how many of each share a factor."""
    shape, found = source.specs[name].shape, source.specs[scale].shape
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
    expected = (
        f"one number, one per row or {list(wanted)} for {name} of shape {list(shape)} in blocks of {block[0]} x "
        f"{block[1]}"
    )
    raise packed_error(source, scale, f"{scale} has shape {list(found)}", expected)


def _scale_of(source: Source, name: str) -> str:
    for suffix in SCALES:
        if name + suffix in source.specs:
            scale = source.specs[name + suffix]
            if scale.dtype not in ("F32", "F16", "BF16", "F64"):
                raise packed_error(source, scale.name, f"{scale.name} is {scale.dtype}", "a scale in F32, BF16 or F16")
            return name + suffix
    found = f"{name} is {source.specs[name].dtype} without a scale tensor"
    raise packed_error(source, name, found, f"{name}_scale_inv or {name}_scale beside it")
