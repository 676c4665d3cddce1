"""Weights that are packed: integers that stand for weights, which no method can add up. They are refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.sources.language import nested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.sources.source import Source

PACKED = {
    ".q_weight": "EXL2",
    ".q_invperm": "EXL2",
    ".trellis": "EXL3",
    ".qbias": "packed",
    ".Qidxs": "QuIP#",
    ".weight_int8pack": "packed",
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".weight_packed": "packed compressed-tensors",
    ".weight_zero_point": "asymmetrically quantised compressed-tensors",
    ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".W_q": "HQQ",
}
READABLE = ("fp8", "compressed-tensors", "fbgemm_fp8", "modelopt", "none")
"""quant_method of layouts that may hold FP8 weights with scales, which we read."""
SCALES = ("_scale_inv", "_scale")
"""Behind the name of a quantised weight."""
BITSANDBYTES = re.compile(r"\.(?:quant_state\.\w+|nested_absmax|nested_quant_map|SCB)$")
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
WEIGHT = re.compile(r"(?:^|[._:])\w?weights?(?:[._:]|$)")
"""In the name of an integer tensor: codes that stand for a weight. A model's own integers are called otherwise."""
CODES = re.compile(
    r"(?:^|[._:])(?:q?codes|qdata|int_data|packed(?:_\w+)?|\w+_packed|\w+_blocks|indices|qidxs)$", re.IGNORECASE
)
"""What else codes are called, where factors lie beside them."""
BESIDE_CODES = (
    "scales", "scale", "weight_scale", "weight_scales", "weight_scale_inv", "scale_weight", "scale_inv", "wscales",
    "scb", "absmax", "zeros", "zero", "zero_point", "zero_points", "qzeros", "codebooks", "codebook", "centroids",
    "lut", "s", "svh", "suh", "su", "sv", "scaling", "scaling_factor", "weight_scaling_factor", "quantizer_scale",
)  # fmt: skip
"""The factors, offsets and tables that make weights of codes, as they are called within one module."""
BUFFER = re.compile(r"position|mask|num_|count|(?:_map|_ids)$")
"""In the name of integers that are no weights, whatever lies beside them."""
DEQUANTISE = (
    "Use the unquantised checkpoint, or load this one with transformers, dequantise it and save it in bfloat16."
)
SECTIONS = ("quantization_config", "compression_config", "quantization", "quant_config", "quantize_config")
"""What a config calls its quantisation; MLX writes `quantization`, with bits and group_size."""


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantisation section of a config.json, wherever it stands; {} without one."""
    found = (section[key] for section in nested(config) for key in SECTIONS if isinstance(section.get(key), dict))
    return next((section for section in found if section), {})


def refuse_packed(source: Source, config: Mapping[str, Any], reads: Callable[[str], bool] = lambda name: True) -> None:
    """Raise SourceError for weights that are packed: GPTQ, AWQ, bitsandbytes, MXFP4, NVFP4, integers and the like.

    Args:
        source: as opened.
        config: its config.json.
        reads: whether the recipe has a tensor of it read; an integer that is not needs to be no weight.
    """
    for packed in (_kind, _codes):  # a kind that is known says more than an integer
        for name in source.specs if packed is _kind else filter(reads, source.specs):
            if (kind := packed(source, name)) is not None:
                raise packed_error(source, name, f"{name}: found {kind} weights", "plain ones")
    section, more = quantisation(config), " If its weights are plain, take quantization_config out of its config.json."
    method = section.get("quant_method")
    if method is not None and method not in READABLE:
        raise packed_error(source, "", f"config.json says quant_method {abbreviated(method)}", "plain weights", more)
    bits = section.get("bits", section.get("w_bit"))
    if method is None and bits is not None:
        found = f"config.json has a quantisation of {abbreviated(bits)} bits"
        raise packed_error(source, "", found, "plain weights", more.replace("quantization_config", "the section"))


def _kind(source: Source, name: str) -> str | None:
    """How a tensor is packed, where its name tells; None for a plain one."""
    names, dtype = source.specs, source.specs[name].dtype
    for suffix, kind in PACKED.items():
        if name.endswith(suffix):
            return kind
    if BITSANDBYTES.search(name):
        return "bitsandbytes"
    if name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in names:
        return "MXFP4"
    return "NVFP4" if dtype in INTEGERS and f"{name}_scale_2" in names else None


def _codes(source: Source, name: str) -> str | None:
    """The integers that stand for weights, of whatever kind; None for a plain tensor."""
    dtype = source.specs[name].dtype
    return f"quantised {dtype}" if dtype in INTEGERS and _stands_for_weights(source, name) else None


def _stands_for_weights(source: Source, name: str) -> bool:
    """Whether an integer tensor holds codes of weights: by its own name, or because factors lie beside it.

    Buffers are integers too (positions, counters, maps of experts): they have one dimension, or nothing beside them
    that would make weights of them.
    """
    names, spec = source.specs, source.specs[name]
    if not spec.shape or spec.elements < 2 or BUFFER.search(name.rpartition(".")[2]):
        return False
    module, _, leaf = name.rpartition(".")
    plain = leaf.removesuffix("_blocks").removesuffix("_packed")
    own = {f"{name}{end}" for end in ("_scale", "_scales", "_scale_inv", "_zeros", "_absmax", ":scale")}
    own |= {f"{module}.{plain}_scale", f"{module}.{plain}_scales", f"{module}.scale_{leaf}"}
    if own & names.keys() or (WEIGHT.search(name) and (len(spec.shape) > 1 or spec.dtype in ("I8", "U8"))):
        return True
    inside = f"{module}." if module else ""
    beside = {other[len(inside) :].partition(".")[0].lower() for other in names if other.startswith(inside)}
    return (len(spec.shape) > 1 or CODES.search(name) is not None) and bool(beside.intersection(BESIDE_CODES))


def packed_error(source: Source, tensor: str, found: str, expected: str, more: str = "") -> SourceError:
    """The error for numbers that can't be read as weights."""
    where = Where(source.role, source.text, tensor)
    return SourceError(f"{source.text}: {found}", expected=expected, todo=f"{DEQUANTISE}{more}", where=where)
