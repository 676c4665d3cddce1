"""Refuse weights that are packed or scaled in a way we don't undo, and say what to do. Knows no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.folder import Opened

PACKED = {
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".weight_packed": "packed compressed-tensors",
    ".weight_zero_point": "asymmetrically quantised compressed-tensors",
    ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
    ".quant_state.bitsandbytes__nf4": "bitsandbytes",
    ".quant_state.bitsandbytes__fp4": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".W_q": "HQQ",
}
READABLE = ("fp8", "compressed-tensors", "fbgemm_fp8", "modelopt", "none")
"""quant_method of layouts that may hold FP8 weights with scales, which we read."""
SCALES = ("_scale_inv", "_scale")
"""Behind the name of a quantised weight."""
INTEGERS = ("I8", "U8", "I32", "U32", "I16", "U16")
DEQUANTISE = (
    "Use the unquantised checkpoint, or load this one with transformers, dequantise it and save it in bfloat16."
)


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantisation section of a config.json, wherever it stands; {} without one."""
    for section in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            found = section.get(key) if isinstance(section, dict) else None
            if isinstance(found, dict):
                return found
    return {}


def refuse_packed(checkpoint: Opened, config: Mapping[str, Any]) -> None:
    """Raise SourceError for weights that are packed: GPTQ, AWQ, bitsandbytes, MXFP4, NVFP4, integers and the like."""
    for name in checkpoint.specs:
        if (kind := _packed(checkpoint, name)) is not None:
            raise SourceError(f"{checkpoint.source}: {name}: found {kind} weights, expected plain ones. {DEQUANTISE}")
    method = quantisation(config).get("quant_method")
    if method is not None and method not in READABLE:
        raise SourceError(
            f"{checkpoint.source}: config.json says quant_method {method!r}, expected plain weights. {DEQUANTISE} If "
            "its weights are plain, take quantization_config out of its config.json."
        )


def _packed(checkpoint: Opened, name: str) -> str | None:
    """How a tensor is packed; None for a plain one."""
    names, dtype = checkpoint.specs, checkpoint.specs[name].dtype
    for suffix, kind in PACKED.items():
        if name.endswith(suffix):
            return kind
    if name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in names:
        return "MXFP4"
    if dtype in INTEGERS and f"{name}_scale_2" in names:
        return "NVFP4"
    return f"quantised {dtype}" if dtype in INTEGERS and any(name + scale in names for scale in SCALES) else None
