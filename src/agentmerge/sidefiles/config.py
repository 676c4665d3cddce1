"""The output's config.json: the base's, with what is no longer true of it set right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BOTH = ("tie_word_embeddings",)
"""transformers reads it of the whole config, vLLM of the language model's part."""
DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def true_dtype(elements: Mapping[str, int]) -> str | None:
    """The config's word for the dtype that most elements have; None when no tensor is of a float dtype.

    Args:
        elements: safetensors dtype to number of elements.
    """
    floats = {dtype: count for dtype, count in elements.items() if dtype in DTYPE_NAMES}
    return DTYPE_NAMES[max(sorted(floats), key=floats.__getitem__)] if floats else None


def output_config(config: bytes, dtype: str, changes: Mapping[str, Any]) -> bytes:
    """config.json with `dtype` in both spellings, in nested sections where they name one, and with other changes.

    transformers reads `dtype` since version 4.56 and `torch_dtype` before; vLLM and SGLang read either. A config that
    says all of it already is returned byte for byte.

    Args:
        config: the base's.
        dtype: in the config's spelling.
        changes: key to value, None to take the key out; set in text_config too where that has the key, and in both
            for a key of BOTH.
    """
    data = json.loads(config)
    changed = _set_dtype(data, dtype) | _set_keys(data, changes)
    for key in ("dtype", "torch_dtype"):
        changed |= data.get(key) != dtype
        data[key] = dtype
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode() if changed else config


def _set_dtype(section: Any, dtype: str) -> bool:
    changed = False
    for key, value in section.items():
        if key in ("dtype", "torch_dtype") and isinstance(value, str) and value != dtype:
            section[key], changed = dtype, True
        elif isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            changed |= _set_dtype(value, dtype)
    return changed


def _set_keys(data: dict[str, Any], changes: Mapping[str, Any]) -> bool:
    before = json.dumps(data)
    text = data.get("text_config")
    for key, value in changes.items():
        inside = [section for section in (text,) if isinstance(section, dict) and (key in section or key in BOTH)]
        for section in inside if inside and key not in data and key not in BOTH else [*inside, data]:
            if value is None:
                section.pop(key, None)
            else:
                section[key] = value
    return json.dumps(data) != before
