"""Quantised checkpoints: FP8 is read as bfloat16, everything else is refused. Knows no agents.

    weight[r, c] = bfloat16(float32(stored[r, c]) * scale of its block, row or tensor)

Two layouts: DeepSeek's, and transformers' fine-grained FP8 (X.weight_scale_inv, one factor per block of 128 x 128; in
spite of its name it multiplies), and compressed-tensors' (X.weight_scale: one per tensor, per row or per block). They
are rounded to bfloat16, as the published conversions do: an agent trained from such a conversion then differs from its
base only where training changed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.checkpoint.views import View
from agentmerge.errors import SourceError
from agentmerge.tensors import DTYPES, Array, Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.checkpoint.reader import Opened

SCALES = (".weight_scale_inv", ".weight_scale")
DROPPED = (".input_scale", ".output_scale", ".k_scale", ".v_scale")
"""Activation and cache scales, which a bfloat16 model has no use for."""
PACKED = {
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".weight_packed": "packed compressed-tensors",
    ".absmax": "bitsandbytes",
    ".quant_state.bitsandbytes__nf4": "bitsandbytes",
    ".quant_state.bitsandbytes__fp4": "bitsandbytes",
    ".SCB": "bitsandbytes",
}
DEQUANTISE = (
    "Use the unquantised checkpoint, or load this one with transformers, dequantise it and save it in bfloat16."
)


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
    block = _block_size(config)
    for name, scale in scales.items():
        _check_shape(checkpoint, name, scale, block)
    specs = {
        name: TensorSpec(name, "BF16", spec.shape) if name in weights else spec
        for name, spec in checkpoint.specs.items()
        if name not in left_out
    }
    return Dequantised(checkpoint, specs, scales, block)


def refuse_packed(checkpoint: Opened, config: Mapping[str, Any]) -> None:
    """Raise SourceError for weights that are packed: GPTQ, AWQ, bitsandbytes and the like."""
    for name in checkpoint.specs:
        for suffix, kind in PACKED.items():
            if name.endswith(suffix):
                raise SourceError(
                    f"{checkpoint.source}: {name}: found {kind} weights, expected plain ones. {DEQUANTISE}"
                )
    quantisation = config.get("quantization_config") or config.get("compression_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    if method in ("gptq", "awq", "bitsandbytes", "hqq", "aqlm", "quanto", "eetq", "vptq", "higgs", "mxfp4", "torchao"):
        raise SourceError(
            f"{checkpoint.source}: config.json says quant_method {method!r}, expected plain weights. {DEQUANTISE}"
        )


class Dequantised(View):
    """FP8 weights as bfloat16."""

    def __init__(
        self, inner: Opened, specs: Mapping[str, TensorSpec], scales: Mapping[str, str], block: tuple[int, int]
    ) -> None:
        super().__init__(inner, specs, (f"{inner.source}: {len(scales)} FP8 tensors are read as bfloat16",))
        self._block = block
        self._factors = {name: _read_whole(inner, scale) for name, scale in scales.items()}

    def read(self, block: Block, out: Array | None = None) -> Array:
        """See Checkpoint.read."""
        name = block.tensor.name
        if name not in self._factors:
            return self._inner.read(block, out)
        out = np.empty(block.elements, DTYPES["BF16"]) if out is None else out
        stored = self._inner.read(Block(self._inner.specs[name], block.start, block.stop)).astype(np.float32)
        out[:] = (stored * self._factor(name, block)).astype(out.dtype)
        return out

    def expect(self, block: Block) -> None:
        """See View.expect."""
        self._inner.expect(block)

    def _factor(self, name: str, block: Block) -> Array:
        """The scale of each element, float32 [n]."""
        factors, columns = self._factors[name], self.specs[name].shape[-1]
        rows_of, columns_of = _steps(self.specs[name].shape, factors.shape, self._block)
        index = np.arange(block.start, block.stop)
        rows, within = index // columns, index % columns
        flat: Array = factors.reshape(-1, factors.shape[-1] if factors.ndim > 1 else 1)
        found: Array = flat[
            np.minimum(rows // rows_of, len(flat) - 1), np.minimum(within // columns_of, flat.shape[1] - 1)
        ]
        return found


def _steps(shape: tuple[int, ...], factors: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that share a factor."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    if int(np.prod(factors)) == 1:
        return rows, columns
    if factors in ((rows,), (rows, 1)):
        return 1, columns
    return block


def _check_shape(checkpoint: Opened, name: str, scale: str, block: tuple[int, int]) -> None:
    shape, found = checkpoint.specs[name].shape, checkpoint.specs[scale].shape
    rows = int(np.prod(shape[:-1]))
    blocks = (-(-rows // block[0]), -(-shape[-1] // block[1])) if shape else ()
    if len(shape) != 2 or (int(np.prod(found)) != 1 and found not in ((rows,), (rows, 1), blocks)):
        raise SourceError(
            f"{checkpoint.source}: {scale} has shape {list(found)}, expected 1, [{rows}, 1] or {list(blocks)} for "
            f"{name} of shape {list(shape)}. {DEQUANTISE}"
        )


def _scale_of(checkpoint: Opened, name: str) -> str:
    stem = name.removesuffix(".weight")
    for suffix in SCALES:
        if stem + suffix in checkpoint.specs:
            return stem + suffix
    raise SourceError(
        f"{checkpoint.source}: {name} is {checkpoint.specs[name].dtype} without a scale tensor. {DEQUANTISE}"
    )


def _block_size(config: Mapping[str, Any]) -> tuple[int, int]:
    quantisation = config.get("quantization_config") or {}
    found = quantisation.get("weight_block_size") or [128, 128]
    return int(found[0]), int(found[1])


def _read_whole(checkpoint: Opened, name: str) -> Array:
    spec = checkpoint.specs[name]
    values: Array = checkpoint.read(Block(spec, 0, spec.elements)).astype(np.float32)
    shaped: Array = values.reshape(spec.shape or (1,))
    return shaped
