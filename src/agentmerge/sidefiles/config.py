"""The output's config.json: the base's, with what is no longer true of it set right."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from agentmerge.files.documents import without_bom
from agentmerge.sources.language import NAMED, SPELLINGS, language_sections, nested

if TYPE_CHECKING:
    from collections.abc import Mapping

BOTH = ("tie_word_embeddings",)
"""transformers reads it of the whole config, vLLM of the language model's part: it is set on the whole way there."""
QUANTISATION = re.compile(r"quant|compress")
"""In the name of a section whose dtypes are not the weights'."""
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
    says all of it already is returned byte for byte, but for a byte order mark.

    Args:
        config: the base's.
        dtype: in the config's spelling.
        changes: key to value, in whatever spelling and section of the language model it stands; a key of BOTH is set
            in all of these sections. None takes a key out wherever it stands.
    """
    config = without_bom(config)
    data = json.loads(config)
    changed = _set_dtype(data, dtype) | _set_dtype(language_sections(data)[-1], dtype) | _set_keys(data, changes)
    for key in ("dtype", "torch_dtype"):
        changed |= data.get(key) != dtype
        data[key] = dtype
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode() if changed else config


def _set_dtype(section: Any, dtype: str) -> bool:
    changed = False
    for key, value in section.items():
        if key in ("dtype", "torch_dtype") and isinstance(value, str) and value != dtype:
            section[key], changed = dtype, True
        elif isinstance(value, dict) and _is_model(key, value):
            changed |= _set_dtype(value, dtype)
    return changed


def _is_model(key: str, section: Mapping[str, Any]) -> bool:
    """Whether a section is that of a model inside the model."""
    named = key.endswith(("_config", "_cfg")) or key in NAMED or "model_type" in section
    return named and QUANTISATION.search(key) is None


def _set_keys(data: dict[str, Any], changes: Mapping[str, Any]) -> bool:
    before = json.dumps(data)
    for key, value in changes.items():
        if value is None:
            for section in nested(data):
                section.pop(key, None)
        else:
            _set_key(data, key, value)
    return json.dumps(data) != before


def _set_key(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of the language model, under every spelling that is there; where it is nowhere, in the innermost."""
    spellings, sections = SPELLINGS.get(key, (key,)), language_sections(data)
    there = [(section, name) for section in sections for name in spellings if section.get(name) is not None]
    for section, name in there or [(sections[-1], key)]:
        section[name] = value
    for section in sections if key in BOTH else ():
        section[key] = value
